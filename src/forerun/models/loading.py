"""Loads models and tokenizers from a directory or by name."""

from __future__ import annotations

from logging import getLogger
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from forerun.errors import ConfigurationError, UnreadableModel

_BFLOAT16_INSTRUCTIONS: Final = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "sve_bf16")
"""Keys of `torch.cpu.get_capabilities()`, on x86 and ARM."""

_logger: Final = getLogger(__name__)


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
    """A dtype by its name; None stands for the default of `load_model`."""
    if given is None or isinstance(given, torch.dtype):
        return given
    dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(given, given), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(f"unknown dtype {given!r}; expected bfloat16, float16 or float32")
    return dtype


def has_bfloat16_instructions() -> bool:
    """Whether this CPU has instructions for bfloat16; False if torch does not list them (before 2.11)."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _BFLOAT16_INSTRUCTIONS)


def load_model(
    model: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Any:
    """A causal language model of transformers in evaluation mode.

    Without a `dtype` it is loaded in that of its checkpoint, except that a bfloat16 checkpoint is loaded in
    float32 on a CPU without bfloat16 instructions, which would have to emulate them; this is logged.
    """
    logging.disable_progress_bar()  # the commands have their own
    try:
        chosen = dtype or _default_dtype(model, torch.device(device))
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=chosen)
    except (OSError, ValueError) as error:
        raise UnreadableModel(f"cannot load a model from {model}: {error}") from error
    return loaded.eval().to(device)


def _default_dtype(model: str | Path, device: torch.device) -> torch.dtype | str:
    """The dtype to load a checkpoint in; `auto` is its own. A quantized checkpoint keeps its own."""
    config = AutoConfig.from_pretrained(model)
    stored = config.dtype or config.get_text_config().dtype
    is_bfloat16 = stored == torch.bfloat16 and not hasattr(config, "quantization_config")
    if not is_bfloat16 or device.type != "cpu" or has_bfloat16_instructions():
        return "auto"
    _logger.info(
        "loading the bfloat16 checkpoint in float32: no bfloat16 instructions found on this CPU"
        " (dtype bfloat16 overrides)"
    )
    return torch.float32


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
