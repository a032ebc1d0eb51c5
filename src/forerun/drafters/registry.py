"""Drafters by name, as the configuration lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from forerun.types import Drafter, LogitsDrafter, RequestView, SamplingParams, TopTokens, Verdict

ENGINE_ONLY: Final = ("grammar", "model")
"""Drafters that need an engine: tokens forced by a grammar, and a draft model beside the target."""


def make_drafters(
    config: SpeculationConfig,
    *,
    chain: bool = False,
    vocabulary: str | None = None,
    model: str | None = None,
    vocab_size: int | None = None,
) -> dict[str, Drafter]:
    """Create and warm up the drafters that a configuration names, except those in `ENGINE_ONLY`.

    `chain` is for engines that do not verify trees. With the fingerprint of the model's vocabulary, corpora
    of another tokenizer are rejected. With the name or directory of the target model, its static table is
    used, if there is one. With `vocab_size`, the engine verifies sampled draft tokens against q, and drafters
    sample them if the configuration says so.
    """
    engine = EngineFacts(chain, vocabulary, model, vocab_size)
    if "auto" in config.drafters:
        own_text_config = config.model_copy(update={"share_outputs": False, "corpora": ()})
    else:
        own_text_config = config
    return {
        name: warm_up(_find_factory(name)(own_text_config if name == "ngram" else config, engine))
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
    for name, sampling in (("warm-up", SamplingParams()), ("warm-up again", SamplingParams(temperature=0))):
        for text in ([1, 2, 1, 2], [1, 2, 1, 2, 1]):
            view = RequestView(name, text, num_prompt=2, salt="forerun warm-up", sampling=sampling)
            (draft,) = drafter.propose([view], [4])
            drafter.learn(name, draft, Verdict((), 1))
            if isinstance(drafter, LogitsDrafter):
                drafter.learn_logits(name, _WARM_UP_ROWS)
        drafter.forget(name)
    return drafter


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What drafters may need to know of their engine; the arguments of `make_drafters`."""

    chain: bool = False
    vocabulary: str | None = None
    model: str | None = None
    vocab_size: int | None = None


DrafterFactory = Callable[[SpeculationConfig, EngineFacts], Drafter]


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


def _make_suffix(config: SpeculationConfig, engine: EngineFacts) -> Drafter:
    return SuffixDrafter(
        chain=engine.chain,
        share_outputs=config.share_outputs,
        corpora=[Corpus(file, vocabulary=engine.vocabulary) for file in config.corpora],
        static_table=None if engine.model is None else load_static_table(engine.model),
    )


def _make_ngram(config: SpeculationConfig, engine: EngineFacts) -> Drafter:
    if config.share_outputs or config.corpora:
        raise ConfigurationError(
            "ngram drafts from a request's own text only; use suffix for share_outputs and corpora"
        )
    if config.sampled and engine.vocab_size is not None:
        return NgramDrafter(rng=np.random.default_rng(), vocab_size=engine.vocab_size)
    return NgramDrafter()


DRAFTERS: Final[dict[str, DrafterFactory]] = {
    "ngram": _make_ngram,
    PREDICTION: lambda *_: PredictionDrafter(),
    "suffix": _make_suffix,
}
