"""Drafting for a batch: which drafter proposes for each request, how many tokens, and what was accepted.

step = speculator.begin_step(requests, rows)                    # the requests of the next step
drafts = speculator.draft(step, requests)                       # proposed draft tokens
speculator.choose(step, drafts)                                 # truncates them to the tokens worth verifying
speculator.observe(name, draft, output_tokens, num_verified)    # the outcome, for every request
speculator.record_step(step, drafts, seconds)
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

from forerun.control.candidates import (
    ASSUMED_ACCEPTANCE,
    Candidates,
    assign_kinds,
    drafter_survival,
    leading_mask,
)
from forerun.control.controller import Controller, Step, warm_up
from forerun.control.step_cost import StepCost
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafters
from forerun.engines.guarded_drafter import EMPTY_DRAFT, GuardedDrafter
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.startup_log import log_compilation
from forerun.engines.vllm.stats import SpecDecodeStats, logger
from forerun.types import Draft, RequestView, Verdict


@dataclass(slots=True)
class DraftRequest:
    """A request to draft for: at most `max_tokens` draft tokens, from `drafter` or else the first one."""

    view: RequestView
    max_tokens: int
    drafter: str | None = None
    greedy: bool = True
    adaptive: bool | None = None

    @property
    def name(self) -> str:
        """The request's id."""
        return self.view.id


@dataclass(slots=True)
class ProposedDraft:
    """A request's draft tokens in a step, with the drafter and the stated survival of each.

    `draft` is the drafter's draft that the leading tokens come from. Tokens that are `sampled` from q are
    never selected by their values. `observe` sets the numbers of verified and accepted tokens.
    """

    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    stated: npt.NDArray[np.floating[Any]] = field(default_factory=lambda: np.zeros(0))
    draft: Draft = EMPTY_DRAFT
    sampled: bool = False
    num_verified: int = 0
    num_accepted: int = 0

    def extend(self, tokens: Sequence[int], source: str, probability: float = ASSUMED_ACCEPTANCE) -> None:
        """Append tokens, each accepted with `probability` if the one before it is."""
        before = float(self.stated[-1]) if len(self.stated) else 1.0
        self.tokens.extend(tokens)
        self.sources.extend([source] * len(tokens))
        self.stated = np.append(self.stated, before * np.cumprod(np.full(len(tokens), probability)))

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens."""
        del self.tokens[num_tokens:], self.sources[num_tokens:]
        self.stated = self.stated[:num_tokens]


class ChainSpeculator:
    """Drafts chains for requests by name, with lengths set by the controller and tokens in the vocabulary.

    `additional_config["forerun"]` of vLLM's configuration holds the settings of `SpeculationConfig`.
    """

    def __init__(self, vllm_config: Any, cost: StepCost | None = None) -> None:
        self.config = speculation_config(vllm_config)
        num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
        self.max_draft_tokens = min(num_speculative_tokens, self.config.max_draft)
        self.names = self.config.names
        self.stats = SpecDecodeStats(self.names, num_speculative_tokens)
        self.controller = Controller(cost or StepCost.default())
        vocab_size = vllm_config.model_config.get_vocab_size()
        tokenizer = vllm_config.model_config.tokenizer
        vocabulary = vocabulary_of(load_tokenizer(tokenizer)) if self.config.corpora else None
        with log_compilation():
            self.drafters = {
                name: GuardedDrafter(name, drafter, self.stats, vocab_size, logger=logger)
                for name, drafter in make_drafters(self.config, chain=True, vocabulary=vocabulary).items()
            }
            warm_up()
        self._default_drafter = next(iter(self.drafters), None)
        self._drafters_used: dict[str, set[str]] = {}

    def begin_step(self, requests: Sequence[DraftRequest], rows: int, context: int = 0) -> Step:
        """Begin a step of `rows` rows and `context` tokens of context, both without draft tokens."""
        for request in requests:
            if request.name not in self._drafters_used:
                self._drafters_used[request.name] = set()
                adaptive = self.config.adaptive if request.adaptive is None else request.adaptive
                self.controller.admit(request.name, greedy=request.greedy, adaptive=adaptive)
        return self.controller.begin_step([request.name for request in requests], rows, context)

    def draft(self, step: Step, requests: Sequence[DraftRequest]) -> list[ProposedDraft]:
        """Propose draft tokens for every request, from the drafter that it names or else the first one.

        Requests for which the controller expects no gain from drafting get an empty draft. Their drafters
        catch up on the skipped tokens at the next proposal.
        """
        should_draft: list[bool] = self.controller.should_draft(step).tolist()
        began = time.perf_counter()
        proposed = [ProposedDraft() for _ in requests]
        for name, drafter in self.drafters.items():
            users = [
                at for at, each in enumerate(requests) if (each.drafter or self._default_drafter) == name
            ]
            for at in users:
                self._drafters_used[requests[at].name].add(name)
            active = [at for at in users if should_draft[at] and requests[at].max_tokens > 0]
            drafts = drafter.propose(
                [requests[at].view for at in active],
                [min(requests[at].max_tokens, self.max_draft_tokens) for at in active],
            )
            for at, found in zip(active, drafts, strict=True):
                draft = _as_chosen(found) if found.q else found  # verified by match_target in any case
                proposed[at] = ProposedDraft(
                    draft.tokens.tolist(), [name] * len(draft), drafter_survival(draft), draft
                )
        step.lookup_seconds += time.perf_counter() - began
        return proposed

    def expected_gain(self, step: Step, drafts: Sequence[ProposedDraft]) -> list[float]:
        """The expected gain of each draft, in tokens."""
        gains: list[float] = self.controller.expected_gain(step, self._candidates(step, drafts)).tolist()
        return gains

    def choose(self, step: Step, drafts: Sequence[ProposedDraft]) -> None:
        """Truncate every draft to the tokens that the controller chooses."""
        began = time.perf_counter()
        candidates = self._candidates(step, drafts)
        if len(candidates):
            chosen = self.controller.choose(step, candidates)
            lengths = np.bincount(candidates.owners[chosen], minlength=len(drafts)).tolist()
            for draft, length in zip(drafts, lengths, strict=True):
                draft.truncate(length)
        step.lookup_seconds += time.perf_counter() - began

    def _candidates(self, step: Step, drafts: Sequence[ProposedDraft]) -> Candidates:
        """The draft tokens of all requests, as chains."""
        if not any(draft.tokens for draft in drafts):
            return Candidates.empty()
        return Candidates.from_chains(
            np.concatenate([draft.stated for draft in drafts], dtype=np.float64),
            np.array([len(draft.tokens) for draft in drafts], dtype=np.int64),
            assign_kinds([draft.sources for draft in drafts], partial(self.controller.kind, step)),
            np.array([draft.sampled for draft in drafts]),
        )

    def observe(
        self, name: str, draft: ProposedDraft, output: Sequence[int], num_verified: int | None = None
    ) -> None:
        """Record a request's output tokens; None means that its whole draft was verified.

        Output of requests forgotten since scheduling is ignored.
        """
        if not len(output) or name not in self._drafters_used:
            return
        sources = draft.sources[:num_verified]
        draft.num_verified, draft.num_accepted = len(sources), min(len(output) - 1, len(sources))
        self.stats.record_request_step(sources, len(output))
        if len(draft.draft) and sources and sources[0] in self._drafters_used[name]:
            verified = draft.draft.truncate(sum(1 for _ in takewhile(sources[0].__eq__, sources)))
            num_accepted = min(len(output) - 1, len(verified))
            self.drafters[sources[0]].learn(name, verified, Verdict(tuple(range(num_accepted)), output[-1]))

    def record_step(self, step: Step, drafts: Sequence[ProposedDraft], seconds: float) -> None:
        """End a step after every request was observed; drafts that were not verified do not count."""
        if not any(draft.tokens for draft in drafts):
            self.controller.record_step(step, np.zeros(0, dtype=bool), seconds)
            for name in self.names if drafts else ():
                self.stats.record_goodput(name, 0.0, None)
            return
        nums = [(len(draft.tokens), draft.num_verified, draft.num_accepted) for draft in drafts]
        lengths, verified, accepted = np.array(nums, dtype=np.int64).T.copy()
        goodput = self.controller.record_step(
            step, leading_mask(lengths, accepted), seconds, leading_mask(lengths, verified)
        )
        num_tokens = Counter(source for draft in drafts for source in draft.sources[: draft.num_verified])
        for name in self.names:
            length = num_tokens[name] / len(drafts)
            self.stats.record_goodput(name, length, goodput if num_tokens[name] else None)

    @property
    def tracked(self) -> Set[str]:
        """The requests with live speculation state."""
        return self._drafters_used.keys()

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """Drop a request's state; with a view, its drafters see the end of its tokens first."""
        self.controller.forget(name)
        for drafter in self._drafters_used.pop(name, ()):
            self.drafters[drafter].forget(name, view)


def _as_chosen(draft: Draft) -> Draft:
    """The draft without its q, as chosen tokens."""
    return replace(draft, sampled=np.zeros(len(draft), dtype=bool), q={})
