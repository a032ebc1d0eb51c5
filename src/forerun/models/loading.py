"""Models and tokenizers from a directory or a name, with errors that say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from forerun.errors import ConfigurationError, UnreadableModel


def device_of(name: str | None) -> torch.device:
    """A device by its name; a GPU if there is one, unless told otherwise."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(f"there is no device {name!r} here; cpu is always there") from error
    return torch.device(name)


def load_model(
    model: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Any:
    """A causal language model of transformers, ready to run; in its own precision unless told otherwise."""
    logging.disable_progress_bar()  # commands show their own
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype or "auto")
    except (OSError, ValueError) as error:
        raise UnreadableModel(f"cannot load a model from {model}: {error}") from error
    return loaded.eval().to(device)


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer that belongs to a model."""
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UnreadableModel(f"{model} has no tokenizer: give the prompts as lists of token ids") from error


def ends_of(model: Any) -> frozenset[int]:
    """The tokens that end an answer of this model."""
    ids = model.generation_config.eos_token_id
    return frozenset([ids] if isinstance(ids, int) else ids or ())
