"""Guessing for an engine: who guesses for which request, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from forerun.control.price import TYPICAL, worth
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafters
from forerun.drafters.tree import SURVIVAL
from forerun.engines.vllm.launch import settings_of
from forerun.engines.vllm.tally import Tally, logger
from forerun.engines.watched import NOTHING, Watched
from forerun.types import Draft, RequestView, Verdict


@dataclass(slots=True)
class Offer:
    """What a request is offered in a step: tokens, who guessed each, and the draft they came from."""

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    draft: Draft = NOTHING

    @property
    def expected(self) -> float:
        """How many of the tokens will stand, by the drafter's own estimate."""
        if self.draft.evidence is None:
            return 0.0
        return float(self.draft.evidence[:, SURVIVAL].sum())

    def extend(self, tokens: Sequence[int], source: str) -> None:
        """Offer more tokens after these."""
        self.tokens.extend(tokens)
        self.sources.extend([source] * len(tokens))

    def cut(self, num_tokens: int) -> None:
        """Offer no more than the first so many."""
        del self.tokens[num_tokens:]
        del self.sources[num_tokens:]


class Guesser:
    """Chains of guesses for requests by name, as many as pay, none that the model does not know.

    Its configuration is `additional_config["forerun"]` of vLLM's, as for `SpeculationConfig`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.config = settings_of(vllm_config)
        self.most_guesses: int = min(
            vllm_config.speculative_config.num_speculative_tokens, self.config.max_draft
        )
        self.names = self.config.names
        self.tally = Tally(self.names, vllm_config.speculative_config.num_speculative_tokens)
        vocab_size = vllm_config.model_config.get_vocab_size()
        tokenizer = vllm_config.model_config.tokenizer
        vocabulary = vocabulary_of(load_tokenizer(tokenizer)) if self.config.corpora else None
        self.drafters = {
            name: Watched(name, drafter, self.tally, vocab_size, logger=logger)
            for name, drafter in make_drafters(self.config, chain=True, vocabulary=vocabulary).items()
        }
        self._first = next(iter(self.drafters), None)
        self._offers: dict[str, Offer] = {}
        self._known: dict[str, set[str]] = {}

    def guess(
        self,
        views: Sequence[RequestView],
        budgets: Sequence[int],
        wanted: Sequence[str | None] | None = None,
    ) -> list[Offer]:
        """An offer for every view, of at most its budget, from the drafter that it wants.

        None wants whoever guesses first. The offers count as made: `hear` tells what became of them.
        """
        offers = [Offer() for _ in views]
        names = [self._first if each is None else each for each in wanted or [None] * len(views)]
        for name, watched in self.drafters.items():
            mine = [place for place, each in enumerate(names) if each == name]
            drafts = watched.propose(
                [views[place] for place in mine], [min(budgets[place], self.most_guesses) for place in mine]
            )
            for place, draft in zip(mine, drafts, strict=True):
                kept = worth(draft, TYPICAL)
                offers[place] = Offer(kept.tokens.tolist(), [name] * len(kept), kept)
                self._known.setdefault(views[place].id, set()).add(name)
        self._offers |= zip((view.id for view in views), offers, strict=True)
        return offers

    def hear(self, name: str, said: Sequence[int], num_checked: int | None = None) -> None:
        """A request said these tokens; of its offer so many were checked, or all."""
        offer = self._offers.pop(name, None)
        if offer is None or not len(said):
            return
        sources = offer.sources[:num_checked]
        self.tally.step(sources, len(said))
        if len(offer.draft) and sources and sources[0] in self.drafters:
            draft = offer.draft.first(sum(1 for _ in takewhile(sources[0].__eq__, sources)))
            num_kept = min(len(said) - 1, len(draft))
            self.drafters[sources[0]].learn(name, draft, Verdict(tuple(range(num_kept)), said[-1]))

    def withdraw(self, name: str) -> None:
        """An offer was not checked after all."""
        self._offers.pop(name, None)

    @property
    def known(self) -> set[str]:
        """The requests that anything is remembered of."""
        return self._offers.keys() | self._known.keys()

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """A request is over; with a view, whoever guessed for it sees the end of its text first."""
        self._offers.pop(name, None)
        for who in self._known.pop(name, ()):
            self.drafters[who].forget(name, view)
