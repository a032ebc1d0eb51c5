"""The target's distribution p at the requested rows of a batch, and the tokens the target emits there.

Verification reads few rows, because rows behind a rejected draft token are never needed. Rows near the root
are computed together at the first request, which is cheaper than level by level; the others when they are
reached. No array of the size of the logits is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.core import arrays
from forerun.core.batch_sampling import BatchSampling
from forerun.core.draft_forest import Forest
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.logits_processors import RowContext, TokenHistory, apply_logits_processors
from forerun.core.logits_warper import probabilities
from forerun.core.tensors import torch
from forerun.errors import InvalidDistribution
from forerun.types import BoolArray, FloatArray, IntArray

PREFETCH_ROWS = 9
"""Rows per request that are computed together: the root and its first draft tokens, in the draft's order."""


@dataclass(frozen=True, eq=False)
class TargetDistribution:
    """p at each row of a forest, computed on demand.

    Row i of the forest is row `logit_rows[i]` of the logits, so that part of a batch can be verified without
    copying it. `keys` are the noise keys of the requests and `lengths` their numbers of tokens at the start
    of the step. Requests with penalties or bad words need `histories`.
    """

    logits: torch.Tensor
    logit_rows: IntArray
    forest: Forest
    settings: BatchSampling
    keys: IntArray
    lengths: IntArray
    histories: Sequence[TokenHistory]

    def __getitem__(self, rows: IntArray) -> torch.Tensor:
        """p at these rows, as a copy that the caller may modify."""
        p, where = self._p(rows)
        return p if where is None else arrays.copy_rows(p, where)

    def token_probs(self, rows: IntArray, tokens: IntArray) -> FloatArray:
        """p(x) of one token per row."""
        p, where = self._p(rows)
        probs: FloatArray = arrays.entries(p, np.arange(len(rows)) if where is None else where, tokens)
        return probs

    def read_only_rows(self, rows: IntArray) -> list[torch.Tensor]:
        """p at these rows as a list of tensors that must not be modified."""
        p, where = self._p(rows)
        return [p[i] for i in (range(len(rows)) if where is None else where.tolist())]

    def _p(self, rows: IntArray) -> tuple[torch.Tensor, IntArray | None]:
        """p at these rows: computed now, or an index into the prefetched rows."""
        if not self._is_prefetched(rows).all():
            return self._compute(rows), None
        prefetched, p = self._prefetched
        return p, np.searchsorted(prefetched, rows)

    def _is_prefetched(self, rows: IntArray) -> BoolArray:
        """Which rows are prefetched: the first of each request, unless it is greedy and needs no p."""
        requests = self.forest.request_of(rows)
        return (rows - self.forest.roots[requests] < PREFETCH_ROWS) & ~self.settings.greedy[requests]

    @cached_property
    def _prefetched(self) -> tuple[IntArray, torch.Tensor]:
        """The prefetched rows in order, and p there."""
        rows = np.flatnonzero(self._is_prefetched(np.arange(self.forest.num_rows)))
        return rows, self._compute(rows)

    def _compute(self, rows: IntArray) -> torch.Tensor:
        """p at these rows, from the logits."""
        requests = self.forest.request_of(rows)
        return probabilities(self._logits(rows), self.settings[requests], self._contexts(rows, requests))

    def _logits(self, rows: IntArray) -> torch.Tensor:
        """The logits at these rows, read-only: a view of contiguous rows, otherwise a copy."""
        at = self.logit_rows[rows]
        if len(at) and (at == at[0] + np.arange(len(at))).all():
            return self.logits[at[0] : at[0] + len(at)]
        copy: torch.Tensor = arrays.copy_rows(self.logits, at)
        return copy

    def processed_logits(self, rows: IntArray) -> torch.Tensor:
        """Float32 logits at these rows after the logits processors."""
        requests = self.forest.request_of(rows)
        logits = self._logits(rows).to(torch.float32, copy=True)
        if self.settings.has_processors[requests].any():
            apply_logits_processors(logits, self.settings[requests], self._contexts(rows, requests))
        return logits

    def argmax(self, rows: IntArray) -> IntArray:
        """The first maximum of the logits at these rows after the logits processors."""
        if self.settings.has_processors[self.forest.request_of(rows)].any():
            return arrays.finite_argmax(self.processed_logits(rows), np.arange(len(rows)))
        return arrays.finite_argmax(self.logits, self.logit_rows[rows])

    def sample(self, rows: IntArray) -> IntArray:
        """The token sampled at each row with the noise of its position."""
        requests = self.forest.request_of(rows)
        p, where = self._p(rows)
        positions = self.lengths[requests] + self.forest.depth[rows]
        return exponential_race_rows(
            p if where is None else arrays.read_rows(p, where), self.keys[requests], positions
        )

    def _contexts(self, rows: IntArray, requests: IntArray) -> list[RowContext]:
        """The context of each row; empty if no row has logits processors."""
        if not self.settings.has_processors[requests].any():
            return []
        return [
            RowContext(self.histories[request], self.forest.path(row))
            for row, request in zip(rows.tolist(), requests.tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False)
class UnwarpedTarget:
    """p before temperature and truncation, after logits processors: for lenience at temperature 0."""

    target: TargetDistribution

    def __getitem__(self, rows: IntArray) -> torch.Tensor:
        return torch.softmax(self.target.processed_logits(rows), dim=-1)


@dataclass(frozen=True, eq=False)
class TargetTokens:
    """The token that the target emits at each row: the argmax, or its sample."""

    target: TargetDistribution

    def __getitem__(self, rows: IntArray) -> IntArray:
        greedy = self.target.settings.greedy[self.target.forest.request_of(rows)]
        tokens = np.empty(len(rows), dtype=np.int64)
        if greedy.any():
            tokens[greedy] = self.target.argmax(rows[greedy])
        if not greedy.all():
            tokens[~greedy] = self._sampled(rows[~greedy])
        return tokens

    @cached_property
    def _prefetched(self) -> IntArray:
        """The tokens sampled at the prefetched rows; -1 elsewhere and where p has no mass."""
        tokens = np.full(self.target.forest.num_rows, -1)
        rows, _ = self.target._prefetched
        tokens[rows] = self.target.sample(rows)
        return tokens

    def _sampled(self, rows: IntArray) -> IntArray:
        """The tokens sampled at these rows."""
        tokens = self._prefetched[rows]
        if (unknown := tokens < 0).any():
            tokens[unknown] = self.target.sample(rows[unknown])
        if (tokens < 0).any():
            raise InvalidDistribution("cannot sample: a row of p is NaN or all 0; check the logits")
        return tokens
