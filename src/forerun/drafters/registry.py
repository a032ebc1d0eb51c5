"""Drafters by name, as the configuration lists them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

import numpy as np

from forerun.config import PREDICTION, SpeculationConfig
from forerun.drafters.corpus import Corpus
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.predicted_output import PredictionDrafter
from forerun.drafters.static_table_cache import load_static_table
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import ConfigurationError
from forerun.types import Drafter, LogitsDrafter, RequestView, TopTokens, Verdict

ENGINE_ONLY: Final = ("grammar", "model")
"""Drafters that need an engine: tokens forced by a grammar, and a draft model beside the target."""


def make_drafters(
    config: SpeculationConfig,
    *,
    chain: bool = False,
    vocabulary: str | None = None,
    model: str | None = None,
) -> dict[str, Drafter]:
    """Create and warm up the drafters that a configuration names, except those in `ENGINE_ONLY`.

    `chain` is for engines that do not verify trees. With the fingerprint of the model's vocabulary, corpora
    of another tokenizer are rejected. With the name or directory of the target model, its static table is
    used, if there is one.
    """
    if "auto" in config.drafters:
        own_text_config = config.model_copy(update={"share_outputs": False, "corpora": ()})
    else:
        own_text_config = config
    return {
        name: warm_up(
            _find_factory(name)(own_text_config if name == "ngram" else config, chain, vocabulary, model)
        )
        for name in config.names
        if name not in ENGINE_ONLY
    }


def make_drafter(config: SpeculationConfig, *, chain: bool = False) -> Drafter:
    """Create the first drafter, for callers that use only one."""
    if len(config.drafters) > 1:
        raise ConfigurationError(f"expected one drafter; got {', '.join(config.drafters)}")
    drafters = make_drafters(config, chain=chain)
    if not drafters:
        raise ConfigurationError(
            f"{', '.join(config.names)} runs only inside an engine; choose suffix or ngram"
        )
    return next(iter(drafters.values()))


def check_known(config: SpeculationConfig) -> None:
    """Raise `ConfigurationError` if a configuration names an unknown drafter."""
    for name in config.names:
        if name not in ENGINE_ONLY:
            _find_factory(name)


_WARM_UP_ROWS: Final = TopTokens(
    np.array([[1, 2]], dtype=np.int32), np.array([[1, 2]], dtype=np.int32), np.ones((1, 2), dtype=np.float32)
)


def warm_up(drafter: Drafter) -> Drafter:
    """Compile what a drafter needs, for a growing text and for a repeated one; returns the drafter."""
    for name in ("warm-up", "warm-up again"):
        for text in ([1, 2, 1, 2], [1, 2, 1, 2, 1]):
            (draft,) = drafter.propose([RequestView(name, text, num_prompt=2, salt="forerun warm-up")], [4])
            drafter.learn(name, draft, Verdict((), 1))
            if isinstance(drafter, LogitsDrafter):
                drafter.learn_logits(name, _WARM_UP_ROWS)
        drafter.forget(name)
    return drafter


DrafterFactory = Callable[[SpeculationConfig, bool, str | None, str | None], Drafter]


def _find_factory(name: str) -> DrafterFactory:
    """Factory of the drafter with this name; `module:name` is a user's class or function."""
    if name in DRAFTERS:
        return DRAFTERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(sorted((*DRAFTERS, *ENGINE_ONLY)))
        raise ConfigurationError(
            f"unknown drafter {name!r}; expected auto, {known}, or your own as module:class"
        )
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"the drafter {name!r} cannot be imported: {error}") from error
    return lambda *_: _create(name, factory)


def _create(name: str, factory: Callable[[], object]) -> Drafter:
    drafter = factory()
    if not isinstance(drafter, Drafter):
        raise ConfigurationError(
            f"{name} returned a {type(drafter).__name__}, which lacks propose, learn or forget"
        )
    return drafter


def _make_suffix(
    config: SpeculationConfig, chain: bool, vocabulary: str | None, model: str | None
) -> Drafter:
    return SuffixDrafter(
        chain=chain,
        share_outputs=config.share_outputs,
        corpora=[Corpus(file, vocabulary=vocabulary) for file in config.corpora],
        static_table=None if model is None else load_static_table(model),
    )


def _make_ngram(config: SpeculationConfig, *_: object) -> Drafter:
    if config.share_outputs or config.corpora:
        raise ConfigurationError(
            "ngram drafts from a request's own text only; use suffix for share_outputs and corpora"
        )
    return NgramDrafter()


DRAFTERS: Final[dict[str, DrafterFactory]] = {
    "ngram": _make_ngram,
    PREDICTION: lambda *_: PredictionDrafter(),
    "suffix": _make_suffix,
}
