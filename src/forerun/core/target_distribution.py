"""The target of a batch: p at the rows that are asked for, and the tokens the target takes there itself.

Verification reads few rows, since those behind a wrong guess are never looked at. Rows near the root are
worked out together when the first of them is wanted, which costs less than level by level; the rest only
when they are reached. Nothing of the size of the logits is ever held beside them.
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

READ_AHEAD = 9
"""Rows per request that are worked out together: the root and its first guesses, in the draft's order."""


@dataclass(frozen=True, eq=False)
class TargetDistribution:
    """What the target says at each row of a forest.

    Row i of the forest is row at[i] of the logits, so that part of a batch can be judged without copying
    it. `keys` are the noise keys of the requests, `lengths` how many tokens each had when the round began;
    `histories` are needed by requests with penalties or bad words.
    """

    logits: torch.Tensor
    at: IntArray
    forest: Forest
    settings: BatchSampling
    keys: IntArray
    lengths: IntArray
    histories: Sequence[TokenHistory]

    def __getitem__(self, rows: IntArray) -> torch.Tensor:
        """p at these rows, the caller's to change."""
        p, where = self._p(rows)
        return p if where is None else arrays.copy_rows(p, where)

    def token_probs(self, rows: IntArray, tokens: IntArray) -> FloatArray:
        """p(x) of one token per row."""
        p, where = self._p(rows)
        chances: FloatArray = arrays.entries(p, np.arange(len(rows)) if where is None else where, tokens)
        return chances

    def read_only_rows(self, rows: IntArray) -> list[torch.Tensor]:
        """p at these rows one by one, not to be changed."""
        p, where = self._p(rows)
        return [p[i] for i in (range(len(rows)) if where is None else where.tolist())]

    def _p(self, rows: IntArray) -> tuple[torch.Tensor, IntArray | None]:
        """p at these rows, as it is or as rows of what was read ahead."""
        if not self._is_ahead(rows).all():
            return self._work_out(rows), None
        rows_ahead, p = self._ahead
        return p, np.searchsorted(rows_ahead, rows)

    def _is_ahead(self, rows: IntArray) -> BoolArray:
        """Which rows are read ahead: the first of each request, unless it is greedy and has no use for p."""
        requests = self.forest.request_of(rows)
        return (rows - self.forest.roots[requests] < READ_AHEAD) & ~self.settings.greedy[requests]

    @cached_property
    def _ahead(self) -> tuple[IntArray, torch.Tensor]:
        """The rows that are read ahead, in order, and p there."""
        rows = np.flatnonzero(self._is_ahead(np.arange(self.forest.num_rows)))
        return rows, self._work_out(rows)

    def _work_out(self, rows: IntArray) -> torch.Tensor:
        """p at these rows, from the logits."""
        requests = self.forest.request_of(rows)
        return probabilities(self._logits(rows), self.settings[requests], self._contexts(rows, requests))

    def _logits(self, rows: IntArray) -> torch.Tensor:
        """The logits at these rows, to be read: neighbours as they lie, others side by side in a copy."""
        at = self.at[rows]
        if len(at) and (at == at[0] + np.arange(len(at))).all():
            return self.logits[at[0] : at[0] + len(at)]
        copy: torch.Tensor = arrays.copy_rows(self.logits, at)
        return copy

    def processed_logits(self, rows: IntArray) -> torch.Tensor:
        """Float32 logits at these rows, after the rules about single tokens."""
        requests = self.forest.request_of(rows)
        logits = self._logits(rows).to(torch.float32, copy=True)
        if self.settings.has_processors[requests].any():
            apply_logits_processors(logits, self.settings[requests], self._contexts(rows, requests))
        return logits

    def argmax(self, rows: IntArray) -> IntArray:
        """The first largest logit at these rows, after the rules about single tokens."""
        if self.settings.has_processors[self.forest.request_of(rows)].any():
            return arrays.first_largest(self.processed_logits(rows), np.arange(len(rows)))
        return arrays.first_largest(self.logits, self.at[rows])

    def sample(self, rows: IntArray) -> IntArray:
        """The winner of each row's race, with the noise of its position."""
        requests = self.forest.request_of(rows)
        p, where = self._p(rows)
        positions = self.lengths[requests] + self.forest.depth[rows]
        return exponential_race_rows(
            p if where is None else arrays.read_rows(p, where), self.keys[requests], positions
        )

    def _contexts(self, rows: IntArray, requests: IntArray) -> list[RowContext]:
        """Where each row stands; nowhere in particular, if no row has rules."""
        if not self.settings.has_processors[requests].any():
            return []
        return [
            RowContext(self.histories[request], self.forest.path(row))
            for row, request in zip(rows.tolist(), requests.tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False)
class UnwarpedTarget:
    """p before temperature and truncation, rules included: for lenience at temperature 0."""

    target: TargetDistribution

    def __getitem__(self, rows: IntArray) -> torch.Tensor:
        return torch.softmax(self.target.processed_logits(rows), dim=-1)


@dataclass(frozen=True, eq=False)
class TargetTokens:
    """The token the target itself takes at each row: the most likely one, or the winner of its race."""

    target: TargetDistribution

    def __getitem__(self, rows: IntArray) -> IntArray:
        greedy = self.target.settings.greedy[self.target.forest.request_of(rows)]
        tokens = np.empty(len(rows), dtype=np.int64)
        if greedy.any():
            tokens[greedy] = self.target.argmax(rows[greedy])
        if not greedy.all():
            tokens[~greedy] = self._winners(rows[~greedy])
        return tokens

    @cached_property
    def _known(self) -> IntArray:
        """The winners at the rows that are read ahead; -1 elsewhere, and where there is none."""
        known = np.full(self.target.forest.num_rows, -1)
        rows, _ = self.target._ahead
        known[rows] = self.target.sample(rows)
        return known

    def _winners(self, rows: IntArray) -> IntArray:
        """The winners at these rows."""
        winners = self._known[rows]
        if (unknown := winners < 0).any():
            winners[unknown] = self.target.sample(rows[unknown])
        if (winners < 0).any():
            raise InvalidDistribution(
                "a row has nothing to draw from: its p is NaN or all 0; check the logits"
            )
        return winners
