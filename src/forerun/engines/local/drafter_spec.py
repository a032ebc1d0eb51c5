"""The `drafter` argument of `LLM`: names, paths of draft models, and drafter objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from forerun.config import SpeculationConfig
from forerun.errors import ConfigurationError
from forerun.types import Drafter

DrafterSpec: TypeAlias = str | Drafter | Sequence[str | Drafter]
"""Drafters: `auto`, `none`, names, `model:PATH`, `module:class`, drafter objects, or several of these."""


def resolve_drafters(
    drafter: DrafterSpec, config: SpeculationConfig
) -> tuple[SpeculationConfig, dict[str, Drafter], tuple[str, ...]]:
    """The configuration with the named drafters, the given drafter objects by name, and the default drafters.

    `auto` keeps the drafters of the configuration.
    """
    specs: Sequence[str | Drafter] = [drafter] if isinstance(drafter, str | Drafter) else drafter
    if not specs:
        raise ConfigurationError(
            "the list of drafters is empty; use auto, or none for non-speculative decoding"
        )
    names = [name.strip() for each in specs if isinstance(each, str) for name in each.split(",")]
    given: dict[str, Drafter] = {}
    for each in specs:
        if not isinstance(each, str):
            name = type(each).__name__
            given[name if name not in given else f"{name} {len(given) + 1}"] = each
    paths = [name.removeprefix("model:") for name in names if name.startswith("model:")]
    others = tuple(name for name in names if not name.startswith("model:"))
    if len(paths) > 1:
        raise ConfigurationError(f"expected at most one draft model; got {', '.join(paths)}")
    changes: dict[str, Any] = {"draft_model": paths[0]} if paths else {}
    if others == ("none",):
        changes["max_draft"] = 0
    elif others not in {(), ("auto",)}:
        changes["drafters"] = others
    elif paths and not others:
        changes["drafters"] = ("model",)
    config = SpeculationConfig(**{**config.model_dump(), **changes})
    by_name = config.default_names if names else ("model",)
    return config, given, (*by_name, *given)
