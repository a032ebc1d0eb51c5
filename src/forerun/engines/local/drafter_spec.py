"""The `drafter` argument of `LLM`: names, paths of draft models, and drafter objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from forerun.config import SpeculationConfig
from forerun.errors import ConfigurationError
from forerun.types import Drafter

DrafterSpec: TypeAlias = str | Drafter | Sequence[str | Drafter]
"""Drafters: `auto`, `none`, names, `model:PATH`, `module:class`, drafter objects, or several of these. Names
may be one text, separated by commas.
"""


@dataclass(frozen=True, slots=True)
class ChosenDrafters:
    """The configuration with the named drafters, the directories of draft models and the drafter objects by
    name, and the drafters of a request that names none.
    """

    config: SpeculationConfig
    models: Mapping[str, str]
    objects: Mapping[str, Drafter]
    default: tuple[str, ...]


def resolve_drafters(drafter: DrafterSpec, config: SpeculationConfig) -> ChosenDrafters:
    """Read the `drafter` argument; `auto` keeps the drafters of the configuration.

    The first draft model is `model`, the others are `model 2` and so on.
    """
    specs: Sequence[str | Drafter] = [drafter] if isinstance(drafter, str | Drafter) else drafter
    if not specs:
        raise ConfigurationError(
            "the list of drafters is empty; use auto, or none for non-speculative decoding"
        )
    names = [name.strip() for each in specs if isinstance(each, str) for name in each.split(",")]
    objects: dict[str, Drafter] = {}
    for each in specs:
        if not isinstance(each, str):
            name = type(each).__name__
            objects[name if name not in objects else f"{name} {len(objects) + 1}"] = each
    paths = [name.removeprefix("model:") for name in names if name.startswith("model:")]
    others = tuple(name for name in names if not name.startswith("model:"))
    changes: dict[str, Any] = {"draft_model": paths[0]} if paths else {}
    if others == ("none",):
        changes["max_draft"] = 0
    elif others not in {(), ("auto",)}:
        changes["drafters"] = others
    elif paths and not others:
        changes["drafters"] = ("model",)
    config = SpeculationConfig(**{**config.model_dump(), **changes})
    models = {} if config.draft_model is None else {"model": config.draft_model}
    models |= {f"model {number}": path for number, path in enumerate(paths[1:], start=2)}
    by_name = config.default_names if names else ("model",)
    return ChosenDrafters(config, models, objects, (*by_name, *list(models)[1:], *objects))
