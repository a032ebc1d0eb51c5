"""The guesses of a whole batch in one row, which is how the controller sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled
from forerun.drafters.match_tree import SURVIVAL
from forerun.types import ROOT, BoolArray, Draft, FloatArray, IntArray

Columns = tuple[FloatArray, IntArray, IntArray, IntArray, BoolArray]
"""Guesses as compiled loops take them: stated, parents, kinds, owners, fixed."""

ASSUMED: Final = 0.7
"""The chance of a guess of which its drafter says nothing; how it does is learnt from there."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is stated of each, whom it follows, its kind, its owner, and whether it is fixed: made whatever
    it costs, as guesses are that were drawn.

    Parents are places in the same row, or below 0; owners are numbers of requests within the batch.
    """

    stated: FloatArray
    parents: IntArray
    kinds: IntArray
    owners: IntArray
    fixed: BoolArray

    def __len__(self) -> int:
        return len(self.stated)

    @classmethod
    @cache
    def none(cls) -> Candidates:
        """No guesses."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(0), nothing, nothing, nothing, np.zeros(0, dtype=bool))

    @classmethod
    def of(cls, drafts: Sequence[Draft], kind: Callable[[str, int], int]) -> Candidates:
        """The guesses of drafts, one after the other; `kind` numbers them by source and owner."""
        sizes = [len(draft) for draft in drafts]
        begins = np.repeat(np.cumsum([0, *sizes])[:-1], sizes)
        nothing = cls.none()
        parents = np.concatenate([nothing.parents, *(draft.parents for draft in drafts)])
        sources = [draft.source or ("",) * len(draft) for draft in drafts]
        return cls(
            np.concatenate([nothing.stated, *map(stated, drafts)]),
            np.where(parents == ROOT, -1, parents + begins),
            kinds_of(sources, kind),
            np.repeat(np.arange(len(drafts)), sizes),
            np.concatenate([nothing.fixed, *(draft.sampled for draft in drafts)]),
        )

    @classmethod
    def chains(cls, stated: FloatArray, sizes: IntArray, kinds: IntArray, drawn: BoolArray) -> Candidates:
        """Chains of these sizes, one after the other; what was `drawn` is fixed."""
        parents, owners = chains(sizes)
        return cls(stated, parents, kinds, owners, drawn[owners])

    @property
    def columns(self) -> Columns:
        """All that is known of them, as compiled loops take it."""
        return self.stated, self.parents, self.kinds, self.owners, self.fixed

    def select(self, kept: BoolArray) -> Candidates:
        """Those that are kept, which all they follow must be."""
        return Candidates(*select_columns(self.columns, kept))


@compiled
def chains(sizes: IntArray) -> tuple[IntArray, IntArray]:
    """Parents and owners of the guesses of chains, one after the other."""
    parents, owners = np.empty(sizes.sum(), dtype=np.int64), np.empty(sizes.sum(), dtype=np.int64)
    place = 0
    for owner in range(len(sizes)):
        for depth in range(sizes[owner]):
            parents[place], owners[place] = -1 if depth == 0 else place - 1, owner
            place += 1
    return parents, owners


@compiled
def leading_mask(sizes: IntArray, nums: IntArray) -> BoolArray:
    """Which guesses of chains of these sizes are among the first so many of theirs."""
    out = np.empty(sizes.sum(), dtype=np.bool_)
    place = 0
    for owner in range(len(sizes)):
        for depth in range(sizes[owner]):
            out[place] = depth < nums[owner]
            place += 1
    return out


@compiled
def select_columns(columns: Columns, kept: BoolArray) -> Columns:
    """The columns of guesses that are kept."""
    stated, parents, kinds, owners, fixed = columns
    places = np.cumsum(kept) - 1
    above = parents[kept]
    for place in range(len(above)):
        if above[place] >= 0:
            above[place] = places[above[place]]
    return stated[kept], above, kinds[kept], owners[kept], fixed[kept]


@compiled
def add_ancestors(kept: BoolArray, parents: IntArray) -> None:
    """Keep whatever those follow that are kept."""
    for node in range(len(kept) - 1, -1, -1):
        if kept[node] and parents[node] >= 0:
            kept[parents[node]] = True


def stated(draft: Draft) -> npt.NDArray[np.floating[Any]]:
    """The survival of every guess as its drafter sees it, or as it is assumed where nothing is said."""
    if draft.evidence is not None:
        return draft.evidence[:, SURVIVAL]
    if draft.is_chain:
        return np.cumprod(np.full(len(draft), ASSUMED))
    return np.array([ASSUMED ** len(draft.path(node)) for node in range(len(draft))], dtype=np.float64)


def kinds_of(sources: Sequence[Sequence[str]], kind: Callable[[str, int], int]) -> IntArray:
    """The kinds of guesses of these drafters, owner by owner."""
    numbers: list[int] = []
    sizes: list[int] = []
    for owner, names in enumerate(sources):
        if names and names.count(names[0]) == len(names):  # nearly always, and quick
            numbers.append(kind(names[0], owner))
            sizes.append(len(names))
        else:
            runs = [(kind(name, owner), len(list(run))) for name, run in groupby(names)]
            numbers += [number for number, _ in runs]
            sizes += [size for _, size in runs]
    return np.repeat(np.array(numbers, dtype=np.int64), sizes)


def select_drafts(drafts: Sequence[Draft], kept: BoolArray) -> list[Draft]:
    """What is left of drafts that lie one after the other, if these guesses are kept."""
    sizes = np.array([len(draft) for draft in drafts], dtype=np.int64)
    ends = np.cumsum(sizes)
    before = np.concatenate([[0], np.cumsum(kept)])
    nums = before[ends] - before[ends - sizes]
    ranks = np.arange(len(kept)) - np.repeat(ends - sizes, sizes)
    if (kept == (ranks < np.repeat(nums, sizes))).all():  # the first ones of everybody, as of chains
        return [draft.truncate(num) for draft, num in zip(drafts, nums.tolist(), strict=True)]
    return [
        draft.select(kept[end - len(draft) : end]) for draft, end in zip(drafts, ends.tolist(), strict=True)
    ]
