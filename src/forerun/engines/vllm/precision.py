"""The dtype in which vLLM will serve a model, as far as it is known before the start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from forerun.engines.vllm.flags import flag_value, split_equals

_ALIASES: Final = {"float": "float32", "half": "float16"}
_KEPT_BY_AUTO: Final = frozenset({"bfloat16", "float16"})
"""With `--dtype auto` vLLM keeps these and converts float32 to the platform's preferred dtype."""


def served_dtype(model: str, given: Sequence[str]) -> str | None:
    """The dtype that the flags name, or that the model's config.json names; None if vLLM will choose it."""
    requested = (flag_value(given, "--dtype") or "auto").lower()
    if requested != "auto":
        return _ALIASES.get(requested, requested)
    if "--config" in split_equals(given):
        return None
    stored = _stored_dtype(Path(model) / "config.json")
    return stored if stored in _KEPT_BY_AUTO else None


def _stored_dtype(file: Path) -> str | None:
    """The dtype in a config.json of transformers, at the top or in the part of a language model."""
    try:
        config: Any = json.loads(file.read_text(encoding="utf-8"))
        parts = [config, config.get("text_config") or {}]
        found = [part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)]
    except (OSError, ValueError, AttributeError):
        return None
    return str(found[0]).removeprefix("torch.") if found else None
