"""Drafters by name: from the configuration to somebody who guesses."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from forerun.config import SpeculationConfig
from forerun.drafters.corpus import Corpus
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import ConfigurationError
from forerun.types import Drafter, RequestView, Verdict

ENGINE_ONLY: Final = ("grammar", "model")
"""Drafters that only an engine can be: what a grammar forces, and a model that runs beside the target."""


def make_drafters(
    config: SpeculationConfig, *, chain: bool = False, vocabulary: str | None = None
) -> dict[str, Drafter]:
    """The drafters that a configuration names, but for those of the engine, by name and warmed up.

    `chain` is for engines that verify no trees. With the fingerprint of the model's vocabulary, corpora of
    another tokenizer are refused.
    """
    if "auto" in config.drafters:
        plain = config.model_copy(update={"share_outputs": False, "corpora": ()})
    else:
        plain = config
    return {
        name: warm_up(_maker(name)(plain if name == "ngram" else config, chain, vocabulary))
        for name in config.names
        if name not in ENGINE_ONLY
    }


def make_drafter(config: SpeculationConfig, *, chain: bool = False, vocabulary: str | None = None) -> Drafter:
    """The drafter that guesses first, for whoever has use for one only."""
    if len(config.drafters) > 1:
        raise ConfigurationError(f"one drafter at a time can guess here; got {', '.join(config.drafters)}")
    drafters = make_drafters(config, chain=chain, vocabulary=vocabulary)
    if not drafters:
        raise ConfigurationError(f"{', '.join(config.names)} guesses only inside an engine")
    return next(iter(drafters.values()))


def check_known(config: SpeculationConfig) -> None:
    """Raise `ConfigurationError` if a configuration names somebody who is not there."""
    for name in config.names:
        if name not in ENGINE_ONLY:
            _maker(name)


def warm_up(drafter: Drafter) -> Drafter:
    """A drafter that has compiled what it needs: for a text that grows, and for one that was seen before."""
    for name in ("warm-up", "warm-up again"):
        for text in ([1, 2, 1, 2], [1, 2, 1, 2, 1]):
            (draft,) = drafter.propose([RequestView(name, text, num_prompt=2, salt="forerun warm-up")], [4])
            drafter.learn(name, draft, Verdict((), 1))
        drafter.forget(name)
    return drafter


Maker = Callable[[SpeculationConfig, bool, str | None], Drafter]


def _maker(name: str) -> Maker:
    """Who makes the drafter of this name; `module:name` is a class or function of the user's own."""
    if name in DRAFTERS:
        return DRAFTERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(sorted((*DRAFTERS, *ENGINE_ONLY)))
        raise ConfigurationError(
            f"no drafter is called {name!r}; there are auto, {known}, and your own as module:class"
        )
    try:
        make = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"the drafter {name!r} cannot be imported: {error}") from error
    return lambda *_: _made(name, make)


def _made(name: str, make: Callable[[], object]) -> Drafter:
    drafter = make()
    if not isinstance(drafter, Drafter):
        raise ConfigurationError(f"{name} made a {type(drafter).__name__}: it lacks propose, learn or forget")
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


DRAFTERS: Final[dict[str, Maker]] = {
    "ngram": _make_ngram,
    "suffix": _make_suffix,
}
