"""Guessing for an engine: who guesses for which request, how far, and what became of it.

step = guesser.open(asks, rows)          # who is in the next pass
offers = guesser.look_up(step, asks)     # what could be guessed
guesser.settle(step, offers)             # what is guessed
guesser.hear(name, offer, said, checked)  # what became of it, for every request
guesser.close(step, offers, seconds)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.control.candidates import ASSUMED, Candidates, kinds_of, leading_mask, stated
from forerun.control.controller import Controller, Step, warm_up
from forerun.control.step_cost import StepCost
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafters
from forerun.engines.guarded_drafter import NOTHING, GuardedDrafter
from forerun.engines.vllm.launch import settings_of
from forerun.engines.vllm.startup_log import log_compilation
from forerun.engines.vllm.stats import SpecDecodeStats, logger
from forerun.types import Draft, RequestView, Verdict


@dataclass(slots=True)
class DraftRequest:
    """A request that guesses are wanted for: at most so many, of this drafter if it says whose."""

    view: RequestView
    room: int
    drafter: str | None = None
    greedy: bool = True
    adaptive: bool | None = None

    @property
    def name(self) -> str:
        """Whose it is."""
        return self.view.id


@dataclass(slots=True)
class ProposedDraft:
    """What a request is offered in a step: tokens, who guessed each, how likely each is to survive by what
    they say, and the draft that the first of them came from. What was `drawn` stays as it is. Once the
    request was heard, how many were checked, and how many of these stood.
    """

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    stated: npt.NDArray[np.floating[Any]] = field(default_factory=lambda: np.zeros(0))
    draft: Draft = NOTHING
    drawn: bool = False
    num_verified: int = 0
    num_accepted: int = 0

    def extend(self, tokens: Sequence[int], source: str, chance: float = ASSUMED) -> None:
        """Offer more tokens after these."""
        before = float(self.stated[-1]) if len(self.stated) else 1.0
        self.tokens.extend(tokens)
        self.sources.extend([source] * len(tokens))
        self.stated = np.append(self.stated, before * np.cumprod(np.full(len(tokens), chance)))

    def truncate(self, num_tokens: int) -> None:
        """Offer no more than the first so many."""
        del self.tokens[num_tokens:], self.sources[num_tokens:]
        self.stated = self.stated[:num_tokens]


class ChainSpeculator:
    """Chains of guesses for requests by name, as many as pay, none that the model does not know.

    Its configuration is `additional_config["forerun"]` of vLLM's, as for `SpeculationConfig`.
    """

    def __init__(self, vllm_config: Any, cost: StepCost | None = None) -> None:
        self.config = settings_of(vllm_config)
        self.most_guesses: int = min(
            vllm_config.speculative_config.num_speculative_tokens, self.config.max_draft
        )
        self.names = self.config.names
        self.tally = SpecDecodeStats(self.names, vllm_config.speculative_config.num_speculative_tokens)
        self.controller = Controller(cost or StepCost.default())
        vocab_size = vllm_config.model_config.get_vocab_size()
        tokenizer = vllm_config.model_config.tokenizer
        vocabulary = vocabulary_of(load_tokenizer(tokenizer)) if self.config.corpora else None
        with log_compilation():
            self.drafters = {
                name: GuardedDrafter(name, drafter, self.tally, vocab_size, logger=logger)
                for name, drafter in make_drafters(self.config, chain=True, vocabulary=vocabulary).items()
            }
            warm_up()
        self._first = next(iter(self.drafters), None)
        self._known: dict[str, set[str]] = {}

    def begin_step(self, asks: Sequence[DraftRequest], rows: int, context: int = 0) -> Step:
        """A step begins, of so many rows and tokens of context without guesses."""
        for ask in asks:
            if ask.name not in self._known:
                self._known[ask.name] = set()
                adaptive = self.config.adaptive if ask.adaptive is None else ask.adaptive
                self.controller.admit(ask.name, greedy=ask.greedy, adaptive=adaptive)
        return self.controller.begin_step([ask.name for ask in asks], rows, context)

    def draft(self, step: Step, asks: Sequence[DraftRequest]) -> list[ProposedDraft]:
        """What could be guessed for everybody, from the drafter that each wants; None wants the first. Nobody
        looks for those for whom it does not pay; it is made up for later.
        """
        whose: list[bool] = self.controller.should_draft(step).tolist()
        began = time.perf_counter()
        offers = [ProposedDraft() for _ in asks]
        for name, watched in self.drafters.items():
            theirs = [place for place, ask in enumerate(asks) if (ask.drafter or self._first) == name]
            for place in theirs:
                self._known[asks[place].name].add(name)
            mine = [place for place in theirs if whose[place] and asks[place].room > 0]
            drafts = watched.propose(
                [asks[place].view for place in mine],
                [min(asks[place].room, self.most_guesses) for place in mine],
            )
            for place, found in zip(mine, drafts, strict=True):
                draft = _as_chosen(found) if found.q else found  # it is followed anyway
                offers[place] = ProposedDraft(
                    draft.tokens.tolist(), [name] * len(draft), stated(draft), draft
                )
        step.look_seconds += time.perf_counter() - began
        return offers

    def expected_gain(self, step: Step, offers: Sequence[ProposedDraft]) -> list[float]:
        """What each offer is worth, in tokens."""
        totals: list[float] = self.controller.expected_gain(step, self._guesses(step, offers)).tolist()
        return totals

    def choose(self, step: Step, offers: Sequence[ProposedDraft]) -> None:
        """Cut every offer to what pays."""
        began = time.perf_counter()
        guesses = self._guesses(step, offers)
        if len(guesses):
            kept = self.controller.choose(step, guesses)
            sizes = np.bincount(guesses.owners[kept], minlength=len(offers)).tolist()
            for offer, size in zip(offers, sizes, strict=True):
                offer.truncate(size)
        step.look_seconds += time.perf_counter() - began

    def _guesses(self, step: Step, offers: Sequence[ProposedDraft]) -> Candidates:
        """Chains of guesses in one row."""
        if not any(offer.tokens for offer in offers):
            return Candidates.none()
        return Candidates.chains(
            np.concatenate([offer.stated for offer in offers], dtype=np.float64),
            np.array([len(offer.tokens) for offer in offers], dtype=np.int64),
            kinds_of([offer.sources for offer in offers], partial(self.controller.kind, step)),
            np.array([offer.drawn for offer in offers]),
        )

    def observe(
        self, name: str, offer: ProposedDraft, said: Sequence[int], num_checked: int | None = None
    ) -> None:
        """A request said these tokens; of its offer so many were checked, or all. What is said by one that
        was given up in the meantime is nobody's.
        """
        if not len(said) or name not in self._known:
            return
        sources = offer.sources[:num_checked]
        offer.num_verified, offer.num_accepted = len(sources), min(len(said) - 1, len(sources))
        self.tally.step(sources, len(said))
        if len(offer.draft) and sources and sources[0] in self._known[name]:
            draft = offer.draft.truncate(sum(1 for _ in takewhile(sources[0].__eq__, sources)))
            num_kept = min(len(said) - 1, len(draft))
            self.drafters[sources[0]].learn(name, draft, Verdict(tuple(range(num_kept)), said[-1]))

    def close(self, step: Step, offers: Sequence[ProposedDraft], seconds: float) -> None:
        """A step is over, and everybody was heard; offers that were not checked did not take part."""
        if not any(offer.tokens for offer in offers):
            self.controller.record_step(step, np.zeros(0, dtype=bool), seconds)
            for name in self.names if offers else ():
                self.tally.paced(name, 0.0, None)
            return
        nums = [(len(offer.tokens), offer.num_verified, offer.num_accepted) for offer in offers]
        sizes, checked, stood = np.array(nums, dtype=np.int64).T.copy()
        rates = self.controller.record_step(
            step, leading_mask(sizes, stood), seconds, leading_mask(sizes, checked)
        )
        made = Counter(source for offer in offers for source in offer.sources[: offer.num_verified])
        for name in self.names:
            self.tally.paced(name, made[name] / len(offers), rates if made[name] else None)

    @property
    def known(self) -> Set[str]:
        """The requests that anything is remembered of."""
        return self._known.keys()

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """A request is over; with a view, whoever guessed for it sees the end of its text first."""
        self.controller.forget(name)
        for who in self._known.pop(name, ()):
            self.drafters[who].forget(name, view)


def _as_chosen(draft: Draft) -> Draft:
    """A draft as if nothing of it had been drawn."""
    return replace(draft, sampled=np.zeros(len(draft), dtype=bool), q={})
