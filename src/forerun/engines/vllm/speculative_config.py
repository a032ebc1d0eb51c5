"""vLLM's `speculative_config`: the one that forerun needs for its own drafters, and the ones that it accepts.

Without a draft model, vLLM is given a method that leaves room for draft tokens, and forerun replaces its
proposer. Speculators of vLLM that run a model are accepted as vLLM takes them: from its flags, or from a
checkpoint of the `speculators` library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from forerun.config import SpeculationConfig
from forerun.engines.vllm.flags import split_equals, take_flag, take_object
from forerun.engines.vllm.hub_cache import cached_file
from forerun.engines.vllm.runner_choice import Runner
from forerun.errors import ConfigurationError

MAX_CHAIN_LENGTH: Final = 24
"""Longer drafts gained nothing in any replay, and vLLM allocates memory for them."""

LOOKUP_METHODS: Final[Mapping[Runner, str]] = {"v1": "custom_class", "v2": "ngram_gpu"}
"""The method with which vLLM leaves room for draft tokens of forerun's own drafters, by runner."""

MODEL_METHODS: Final = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
"""The methods of vLLM that run a model, and that forerun verifies; `mtp` has names per architecture too."""

_FLAG: Final = "--speculative-config"
_KEY_FLAGS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}

_USE_LOOKUP: Final = "leave it out: forerun's drafters look drafts up, and --drafter chooses them"
_USE_VLLM: Final = f"use one of {', '.join(MODEL_METHODS)}, or vllm serve"
_REMEDIES: Final = {
    "ngram": _USE_LOOKUP,
    "ngram_gpu": _USE_LOOKUP,
    "suffix": _USE_LOOKUP,
    "custom_class": "use --drafter module:class",
}

_OWN_SETTINGS: Final = {
    "rejection_sample_method": ("standard", "forerun verifies draft tokens itself"),
    "enable_adaptive_verification": (False, "forerun's controller chooses draft lengths"),
    "num_speculative_tokens_per_batch_size": (None, "forerun's controller chooses draft lengths"),
    "use_heterogeneous_vocab": (False, "draft and target must have the same tokens"),
    "use_local_argmax_reduction": (False, "draft tokens are sampled from the draft model's logits"),
}
"""Settings that contradict forerun: the value that is accepted, and the reason."""


def is_model_method(method: str) -> bool:
    """Whether a method of vLLM runs a model that forerun accepts as a drafter."""
    return method in MODEL_METHODS or method.endswith("_mtp")


def speculative_config_for(
    config: SpeculationConfig, runner: Runner, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The `speculative_config` for a runner: the given one, or the one of a configuration of forerun."""
    check_verification(config, runner)
    if given is not None:
        check_speculative_config(given, runner)
        return _as_sampled_by(runner, given)
    length = max(1, min(config.max_draft, MAX_CHAIN_LENGTH))
    if config.draft_model is not None:
        draft = {"method": "draft_model", "model": config.draft_model, "num_speculative_tokens": length}
        return _as_sampled_by(runner, draft)
    method = LOOKUP_METHODS[runner]
    if runner == "v1":
        room = {"method": method, "model": "forerun.engines.vllm.NullProposer"}
        return {**room, "num_speculative_tokens": length}
    orders = {"prompt_lookup_min": 1, "prompt_lookup_max": 1}
    lengths = {"num_speculative_tokens": length, "num_speculative_tokens_per_batch_size": _graphs(length)}
    return {"method": method, **orders, **lengths}


def _graphs(length: int) -> list[list[int]]:
    """A schedule by batch size for which vLLM captures CUDA graphs of draft lengths 0 and `length`.

    Without it, steps without draft tokens would lack the graphs that they have without speculation. The
    controller chooses the lengths.
    """
    return [[1, 1, 0], [2, 2, length]]


def _as_sampled_by(runner: Runner, given: Mapping[str, Any]) -> dict[str, Any]:
    """V1 verifies tokens that vLLM sampled from q; on V2 forerun samples them, and vLLM stores no logits."""
    return {**given, "draft_sample_method": "probabilistic"} if runner == "v1" else dict(given)


def check_verification(config: SpeculationConfig, runner: Runner) -> None:
    """Raise `ConfigurationError` for settings that vLLM, or a runner, does not have."""
    if config.run_ahead:
        raise ConfigurationError(
            "run_ahead is set; vLLM's workers draft between their steps, and only the local engine has draft"
            " models in processes of their own: leave it out"
        )
    if runner == "v1":
        return
    if config.sampled:
        raise ConfigurationError(
            "sampled is set; vLLM's V2 model runner accepts draft tokens only where they equal the target's"
            " sample, which a chosen token does more often than a sampled one: leave it out, or set"
            " VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if config.lenience < 1:
        raise ConfigurationError(
            f"lenience is {config.lenience}; vLLM's V2 model runner accepts draft tokens only where they"
            " equal the target's sample, so it must be 1; or set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if config.verifier not in {"auto", "match"}:
        raise ConfigurationError(
            f"verifier is {config.verifier!r}; vLLM's V2 model runner has 'match' only; leave it out, or set"
            " VLLM_USE_V2_MODEL_RUNNER=0"
        )


def check_speculative_config(given: Mapping[str, Any], runner: Runner) -> None:
    """Raise `ConfigurationError` for a method or a setting that forerun does not accept."""
    method = given.get("method")
    if method is not None:
        check_method(method, runner)
    for key, (accepted, reason) in _OWN_SETTINGS.items():
        if given.get(key, accepted) != accepted:
            raise ConfigurationError(
                f"{key} of {_FLAG} is {given[key]!r}; forerun needs {accepted!r}, because {reason}"
            )
    if given.get("parallel_drafting") and method != "dflash":
        raise ConfigurationError(
            f"parallel_drafting of {_FLAG} needs method 'dflash' with vLLM's V2 runner; got {method!r}"
        )
    if runner == "v1" and given.get("draft_sample_method", "probabilistic") != "probabilistic":
        raise ConfigurationError(
            f"draft_sample_method of {_FLAG} is {given['draft_sample_method']!r}; on vLLM's V1 model runner"
            " forerun needs 'probabilistic'; leave it out"
        )


def check_method(method: str, runner: Runner) -> None:
    """Raise `ConfigurationError` unless forerun accepts a method of vLLM that runs a model on this runner."""
    if not is_model_method(method):
        raise ConfigurationError(f"method {method!r} of {_FLAG}: {_REMEDIES.get(method, _USE_VLLM)}")
    if runner == "v1" and method == "dflash":
        raise ConfigurationError(
            f"method {method!r} of {_FLAG} needs vLLM's V2 model runner, and this server runs V1; use a draft"
            " model (--draft-model) or an EAGLE head, or vllm serve"
        )


def speculator_name(given: Mapping[str, Any] | None) -> str | None:
    """The name of the model that a `speculative_config` of vLLM runs: its path, or its method."""
    return None if given is None else given.get("model") or given.get("method")


def with_speculator(config: SpeculationConfig, given: Mapping[str, Any] | None) -> SpeculationConfig:
    """The configuration with the drafter `model`, if a `speculative_config` of vLLM is given."""
    name = speculator_name(given)
    if name is None or config.draft_model == name:
        return config
    if config.draft_model is not None:
        raise ConfigurationError(
            f"got the draft model {config.draft_model} and {_FLAG} with {name}; give one of them"
        )
    return config.model_copy(update={"draft_model": name})


def take_speculative_config(parts: Sequence[str]) -> tuple[list[str], dict[str, Any] | None]:
    """The flags without those of vLLM's `speculative_config`, and the value that they give."""
    rest, value = take_object(split_equals(parts), _FLAG)
    value = None if value is None else {key.replace("-", "_"): each for key, each in value.items()}
    for flag, key in _KEY_FLAGS.items():
        rest, text = take_flag(rest, flag)
        if text is None:
            continue
        value = value or {}
        if key in value:
            raise ConfigurationError(f"{flag} and {key!r} of {_FLAG} are both given; give one of them")
        value[key] = int(text) if text.isdecimal() else text
    return rest, value


def given_speculative_config(model: str, parts: Sequence[str]) -> dict[str, Any] | None:
    """The `speculative_config` given by flags, or by the model if it is a checkpoint of `speculators`."""
    _, value = take_speculative_config(parts)
    if (method := _speculators_method(model, parts)) is not None:
        return {**(value or {}), "method": method, "model": model}
    if value is not None and not (value.get("method") or value.get("model")):
        raise ConfigurationError(
            f"{_FLAG} is {json.dumps(value)}; give its method or model, or leave it out and set the maximum"
            " draft length with --speculation (max_draft)"
        )
    return value


def _speculators_method(model: str, parts: Sequence[str]) -> str | None:
    """The method of a checkpoint of the `speculators` library; None for other models."""
    file = Path(model) / "config.json" if Path(model).is_dir() else cached_file(model, "config.json", parts)
    try:
        config: Any = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
        is_speculator = config.get("speculators_config") is not None
    except (OSError, ValueError, AttributeError):
        return None
    return str(config.get("speculators_model_type")) if is_speculator else None
