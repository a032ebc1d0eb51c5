"""Loads models and tokenizers from a directory or by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from forerun.errors import ConfigurationError, UnreadableModel


def resolve_device(name: str | None) -> torch.device:
    """A device by its name; by default a GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(f"device {name!r} is not available; use cpu") from error
    return torch.device(name)


def resolve_dtype(given: str | torch.dtype | None) -> torch.dtype | None:
    """A dtype by its name; None stands for the dtype of the checkpoint."""
    if given is None or isinstance(given, torch.dtype):
        return given
    dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(given, given), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(f"unknown dtype {given!r}; expected bfloat16, float16 or float32")
    return dtype


def load_model(
    model: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Any:
    """A causal language model of transformers in evaluation mode; by default in its own dtype."""
    logging.disable_progress_bar()  # the commands have their own
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype or "auto")
    except (OSError, ValueError) as error:
        raise UnreadableModel(f"cannot load a model from {model}: {error}") from error
    return loaded.eval().to(device)


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer of a model."""
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UnreadableModel(f"{model} has no tokenizer; pass prompts as lists of token ids") from error


def get_eos_token_ids(model: Any) -> frozenset[int]:
    """The end-of-sequence tokens of a model."""
    ids = model.generation_config.eos_token_id
    return frozenset([ids] if isinstance(ids, int) else ids or ())
