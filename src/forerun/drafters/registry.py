"""Drafters by name: from the configuration to somebody who guesses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forerun.config import SpeculationConfig
from forerun.drafters.corpus import Corpus
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import ConfigurationError
from forerun.types import Drafter, RequestView

AUTO: Final = "suffix"
"""Who guesses if nothing is said: it needs no second model, and beat the n-gram tables in every replay."""


def make_drafter(config: SpeculationConfig, *, chain: bool = False, vocabulary: str | None = None) -> Drafter:
    """The drafter that a configuration asks for, warmed up: it has compiled what it needs.

    `chain` is for engines that verify no trees. With the fingerprint of the model's vocabulary, corpora of
    another tokenizer are refused.
    """
    if len(config.drafters) > 1:
        raise ConfigurationError(f"one drafter at a time can guess; got {', '.join(config.drafters)}")
    name = AUTO if config.drafters[0] == "auto" else config.drafters[0]
    if name not in DRAFTERS:
        raise ConfigurationError(
            f"no drafter is called {name!r}; there are auto, {', '.join(sorted(DRAFTERS))}"
        )
    drafter = DRAFTERS[name](config, chain, vocabulary)
    for text in ([1, 2, 1, 2], [1, 2, 1, 2, 1]):
        drafter.propose([RequestView("warm-up", text)], [4])
    drafter.forget("warm-up")
    return drafter


def _make_suffix(config: SpeculationConfig, chain: bool, vocabulary: str | None) -> Drafter:
    return SuffixDrafter(
        chain=chain,
        share_outputs=config.share_outputs,
        corpora=[Corpus(file, vocabulary=vocabulary) for file in config.corpora],
    )


def _make_ngram(config: SpeculationConfig, *_: object) -> Drafter:
    if config.share_outputs or config.corpora:
        raise ConfigurationError(
            "ngram guesses from a request's own text only; share_outputs and corpora: suffix"
        )
    return NgramDrafter()


DRAFTERS: Final[dict[str, Callable[[SpeculationConfig, bool, str | None], Drafter]]] = {
    "ngram": _make_ngram,
    "suffix": _make_suffix,
}
