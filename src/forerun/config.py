"""The configuration of speculation: the same keys in Python, on the command line and in the server.

An unknown key raises an error that names the nearest known one; no setting is ignored silently.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from forerun.errors import ConfigurationError, UnknownKey, did_you_mean

PREDICTION: Final = "prediction"
"""The drafter of requests with a predicted output."""

AUTO: Final = ("suffix", "ngram", "grammar", PREDICTION)
"""The drafters of `auto`, which need no second model."""

ON_REQUEST: Final = ("ngram", PREDICTION)
"""Drafters of `auto` that draft only for some requests: `ngram` for those that name it, because the suffix
drafter had more tokens per step in every replay, and `prediction` for those that have one.
"""

BUILD_VARIABLE: Final = "FORERUN_BUILD_TABLES"
"""Environment variable; with the value 0, servers build no static table in the background."""

VerifierName: TypeAlias = Literal["auto", "match", "rejection", "block"]
"""Verifier of drafts with tokens sampled from a q; drafts of chosen tokens are always matched."""

DEPRECATED_VERIFIERS: Final = {"follow": "match", "reject": "rejection"}
"""Old verifier names, still accepted with a `DeprecationWarning`."""


def current_verifier(name: str) -> VerifierName:
    """Replace a deprecated verifier name; raises `ConfigurationError` for an unknown one.

    The warning points at the caller of the function that calls this one.
    """
    if name in DEPRECATED_VERIFIERS:
        new = DEPRECATED_VERIFIERS[name]
        warnings.warn(
            f"verifier {name!r} is deprecated; use {new!r} instead", DeprecationWarning, stacklevel=3
        )
        name = new
    if name not in (known := get_args(VerifierName)):
        expected = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise ConfigurationError(f"verifier: got {name!r}, expected {expected}")
    return cast("VerifierName", name)


class SpeculationConfig(BaseModel):
    """Which drafters to use, the maximum draft length, and how drafts are verified. No key is required."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    drafters: tuple[str, ...] = Field(
        default=("auto",),
        min_length=1,
        description="drafters to use, all together: auto (those that need no second model), or names",
    )
    draft_model: str | None = Field(default=None, description="a smaller model with the same vocabulary")
    run_ahead: bool = Field(
        default=False,
        description="run draft models in processes of their own, which draft while the target verifies (local"
        " engine only)",
    )
    max_draft: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=64, description="maximum draft tokens of a request in one step; 0 disables speculation"
    )
    adaptive: bool = Field(
        default=True,
        description="choose draft lengths by predicted gain; off, verify every draft token there is",
    )
    draft_trees: bool | None = Field(
        default=None,
        description="draft trees instead of chains (default: on in the local engine, off in vLLM, where it"
        " needs the V2 runner without async scheduling)",
    )
    share_outputs: bool = Field(
        default=False, description="draft from other requests' outputs, within one cache_salt"
    )
    sampled: bool = Field(
        default=False,
        description="ngram samples its draft tokens from its counts, for sampled requests without a seed, and"
        " they are verified against that q (local engine and vLLM's V1 runner)",
    )
    corpora: tuple[Path, ...] = Field(default=(), description="files of `forerun corpus build` to draft from")
    verifier: VerifierName = Field(
        default="auto",
        description="verifier of draft tokens sampled from q (auto: block for chains, rejection for trees)",
    )
    lenience: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="below 1 lossy: no token is more than 1/lenience times as likely as without",
    )
    invariant: bool | None = Field(
        default=None,
        description="logits of a position do not depend on the batch or on speculation, bit for bit (default:"
        " on in the local engine in float32 on CPUs with MKL, off elsewhere)",
    )

    def __init__(self, **values: Any) -> None:
        """Raises `ConfigurationError` for an invalid value; the message names the allowed ones."""
        unknown = sorted(set(values) - set(type(self).model_fields))
        if unknown:
            hint = did_you_mean(unknown[0], type(self).model_fields)
            raise UnknownKey(f"unknown configuration key {unknown[0]!r}; {hint}")
        if isinstance(given := values.get("verifier"), str):
            values["verifier"] = current_verifier(given)
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the configuration"
            raise ConfigurationError(f"{where}: {first['msg']}; got {first['input']!r}") from error

    @model_validator(mode="after")
    def _check_lenience(self) -> SpeculationConfig:
        if self.lenience < 1 and self.verifier in {"match", "block"}:
            raise ValueError(f"lenience below 1 needs verifier auto or rejection; got {self.verifier}")
        return self

    @model_validator(mode="after")
    def _check_draft_model(self) -> SpeculationConfig:
        if "model" in self.drafters and self.draft_model is None:
            raise ValueError("the drafter `model` needs draft_model: set it to the path of a smaller model")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All drafter names in order, with `auto` expanded; not yet validated."""
        named = [name for given in self.drafters for name in (AUTO if given == "auto" else (given,))]
        return tuple(dict.fromkeys([*named, "model"] if self.draft_model else named))

    @property
    def default_names(self) -> tuple[str, ...]:
        """The drafters of a request that names none: all configured ones, except `ON_REQUEST` of `auto`."""
        return tuple(name for name in self.names if name in self.drafters or name not in ON_REQUEST)

    @classmethod
    def parse(cls, given: str | Path | dict[str, Any]) -> SpeculationConfig:
        """Read JSON text, a file of it, or a dict."""
        return cls(**(given if isinstance(given, dict) else _read_json(given)))


def _read_json(given: str | Path) -> dict[str, Any]:
    """Parse JSON text, or the file at a path."""
    is_text = isinstance(given, str) and given.lstrip().startswith("{")
    try:
        values = json.loads(str(given) if is_text else Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {given}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"the configuration is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"the configuration must be a JSON object; got {type(values).__name__}")
    return values
