"""Run-ahead drafting: while the target verifies a draft, the draft model prepares the next ones.

Kumar, Dao and May 2026 (speculative speculative decoding). For the likely outcomes of the verification, the
draft model computes the chain that follows each. If the outcome is among them, the next draft is there at
once; otherwise the draft model drafts as usual. Prepared chains are drawn from the same q as fresh ones, and
their randomness is independent of the verification, so the output distribution stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import race_confidences
from forerun.core.logits_processors import RowContext
from forerun.core.noise import signed
from forerun.core.tensors import torch
from forerun.drafters.draft_chain import DraftChain
from forerun.drafters.draft_model import NAME, ModelDrafter
from forerun.drafters.draft_rows import DraftRows
from forerun.drafters.outcomes import AcceptanceRate, Outcome, likely_outcomes
from forerun.models.input_rows import COMMITTED
from forerun.models.invariant_runner import make_runner
from forerun.models.loading import load_model
from forerun.models.runner import Runner
from forerun.types import Draft, RequestView

MAX_OUTCOMES: Final = 8
"""Prepared outcomes of a request."""


@dataclass(slots=True)
class _OutcomeDraft:
    """The chain behind one outcome, and the rows of its path and of its tokens in the slot."""

    outcome: Outcome
    path: list[int]
    path_rows: list[int]
    chain: DraftChain
    chain_rows: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Round:
    """A draft being verified, behind `num_committed` tokens, and what is prepared for its outcomes."""

    view: RequestView
    num_committed: int
    budget: int
    chain: DraftChain
    prepared: list[_OutcomeDraft] = field(default_factory=list)


@dataclass(slots=True)
class RunAheadStats:
    """Drafts that were prepared when they were needed, and drafts that were not."""

    num_hits: int = 0
    num_misses: int = 0


class RunAheadModel(ModelDrafter):
    """A draft model that prepares drafts between two calls of `propose`, as far as `prepare` is iterated."""

    def __init__(
        self,
        runner: Runner,
        vocab_size: int,
        *,
        rng: np.random.Generator | None = None,
        max_outcomes: int = MAX_OUTCOMES,
    ) -> None:
        super().__init__(runner, vocab_size, rng=rng)
        self.max_outcomes = max_outcomes
        self.stats = RunAheadStats()
        self._acceptance = AcceptanceRate()
        self._rounds: dict[str, _Round] = {}
        self._budgets: dict[str, int] = {}

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view: a prepared one, or else a fresh one."""
        self._budgets = {view.id: budget for view, budget in zip(views, budgets, strict=True)}
        drafts = [self._take(view, budget) for view, budget in zip(views, budgets, strict=True)]
        missing = [i for i, draft in enumerate(drafts) if draft is None]
        fresh = iter(super().propose([views[i] for i in missing], [budgets[i] for i in missing]))
        return [next(fresh) if draft is None else draft for draft in drafts]

    def forget(self, id: str) -> None:  # noqa: A002
        """Free the slot of a request and what was prepared for it."""
        self._rounds.pop(id, None)
        super().forget(id)

    def _finish(self, view: RequestView, chain: DraftChain) -> Draft:
        self._rounds[view.id] = _Round(view, len(view.tokens), self._budgets[view.id], chain)
        return chain.draft(view, NAME)

    def _take(self, view: RequestView, budget: int) -> Draft | None:
        """The prepared draft of a request, whose rows become those of the draft in its slot."""
        last = self._rounds.pop(view.id, None)
        num = min(budget, self.runner.max_length - len(view.tokens))
        if last is None or num <= 0 or view.id not in self._states:
            return None
        path = [int(token) for token in view.tokens[last.num_committed :]]
        self._acceptance.record(len(last.chain.tokens), _num_equal(last.chain.tokens, path))
        found = next((each for each in last.prepared if each.path == path and each.chain.tokens), None)
        if found is None:
            self.stats.num_misses += 1
            return None
        self.stats.num_hits += 1
        chain = found.chain.first(num)
        num_rows = len(chain.tokens) - 1
        state = self._states[view.id]
        self.runner.advance(state.slot, found.path_rows, found.chain_rows[:num_rows])
        state.tokens, state.parents = chain.tokens[:-1], list(range(COMMITTED, num_rows - 1))
        return self._finish(view, chain)

    def prepare(self) -> Iterator[None]:
        """Prepare for the outcomes of the last drafts; stops after each forward pass.

        The caller may abandon it at any of them: chains that are begun are used as far as they are.
        """
        rounds = [
            each for name, each in self._rounds.items() if name in self._budgets and self._has_room(each)
        ]
        if not rounds or not self.max_outcomes:
            return
        self._choose_outcomes(rounds)
        yield
        active = [(each, prepared) for each in rounds for prepared in each.prepared]
        while active:
            logits = self._forward_prepared(active)
            self._extend(
                [each.view for each, _ in active], [prepared.chain for _, prepared in active], logits
            )
            active = [each for each in active if len(each[1].chain.tokens) < each[0].budget]
            yield

    def _has_room(self, each: _Round) -> bool:
        """Whether the rows of all outcomes fit into the slot."""
        rows = len(each.chain.tokens) + self.max_outcomes * (1 + each.budget)
        return each.num_committed + rows <= self.runner.max_length

    def _choose_outcomes(self, rounds: Sequence[_Round]) -> None:
        """Compute the rows behind the last draft tokens, and choose the outcomes to prepare for."""
        logits = self._forward_last([each.view for each in rounds], [each.chain for each in rounds])
        for each, row in zip(rounds, logits, strict=True):
            tokens = each.chain.tokens
            candidates = _candidates(self._next_probs(each, row), tokens, self.max_outcomes)
            outcomes = likely_outcomes(candidates, self._acceptance.value, self.max_outcomes)
            each.prepared = [
                _OutcomeDraft(
                    outcome,
                    path := [*tokens[: outcome.num_accepted], outcome.token],
                    list(range(outcome.num_accepted)),
                    DraftChain(path),
                )
                for outcome in outcomes
            ]

    def _next_probs(self, each: _Round, last_logits: torch.Tensor) -> torch.Tensor:
        """[draft tokens + 1, vocabulary]: how likely the target emits each token at every position."""
        view, num = each.view, len(each.chain.tokens)
        positions = each.num_committed + np.arange(num + 1)
        seed = view.sampling.seed
        last = DraftRows(BatchSampling.of([view.sampling]), [RowContext()], positions[-1:], [seed])
        q = [torch.as_tensor(proposal.probs) for proposal in each.chain.proposals]
        if view.sampling.unseeded:
            return torch.stack([*q, *last.distributions(last_logits[None])])
        confidences = torch.stack([*q, *last.confidences(last_logits[None])])
        if not view.sampling.greedy:
            keys = np.full(num, signed(seed or 0))
            confidences[:num] = race_confidences(confidences[:num], keys, positions[:num])
        return confidences

    def _forward_prepared(self, active: Sequence[tuple[_Round, _OutcomeDraft]]) -> torch.Tensor:
        """Compute the last row of each path with its chain; returns their logits in order."""
        by_request: dict[str, list[_OutcomeDraft]] = {}
        for each, prepared in active:
            by_request.setdefault(each.view.id, []).append(prepared)
        drafts = []
        for name, some in by_request.items():
            state = self._states[name]
            parents = [(one.chain_rows or one.path_rows or [COMMITTED])[-1] for one in some]
            for row, one in enumerate(some, start=len(state.tokens)):
                (one.chain_rows if one.chain.tokens else one.path_rows).append(row)
            drafts.append((state, [one.chain.path[-1] for one in some], parents))
        return self._forward_drafts(drafts)


def load_run_ahead(
    path: str,
    *,
    dtype: torch.dtype,
    device: str,
    vocab_size: int,
    num_slots: int,
    max_length: int,
    max_outcomes: int = MAX_OUTCOMES,
) -> RunAheadModel:
    """Load a draft model; called in its process."""
    model = load_model(path, dtype, device)
    runner = make_runner(model, invariant=None, num_slots=num_slots, max_length=max_length)
    return RunAheadModel(runner, vocab_size, max_outcomes=max_outcomes)


def _candidates(next_probs: torch.Tensor, tokens: Sequence[int], num: int) -> list[list[tuple[int, float]]]:
    """The `num` most likely next tokens at every position, except the draft token that was rejected there."""
    others = next_probs.clone()
    rows = torch.arange(len(tokens), device=others.device)
    others[rows, torch.tensor(tokens, dtype=torch.long, device=others.device)] = 0.0
    others /= others.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(others.dtype).tiny)
    values, indices = (each.tolist() for each in others.topk(min(num, others.shape[1]), dim=-1))
    return [list(zip(*each, strict=True)) for each in zip(indices, values, strict=True)]


def _num_equal(draft: Sequence[int], output: Sequence[int]) -> int:
    """The number of draft tokens that the output begins with."""
    num = 0
    while num < min(len(draft), len(output) - 1) and draft[num] == output[num]:
        num += 1
    return num
