"""Candidate draft tokens of a whole batch as flat arrays, the controller's view of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled
from forerun.types import ROOT, BoolArray, Draft, FloatArray, IntArray

CandidateArrays = tuple[FloatArray, IntArray, IntArray, IntArray, BoolArray]
"""Candidates as compiled functions take them: drafter_survival, parents, kinds, owners, mandatory."""

ASSUMED_ACCEPTANCE: Final = 0.7
"""Acceptance probability assumed for draft tokens whose drafter states none. The survival estimator
calibrates it online.
"""

ASSUMED_SURVIVAL: Final[FloatArray] = np.power(ASSUMED_ACCEPTANCE, np.arange(1.0, 1025.0))
"""Survival by depth at that acceptance probability."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidate draft tokens of a batch, request after request.

    `drafter_survival` is the survival probability that the drafter states, `kinds` the calibration kind.
    `parents` index these arrays, or are negative at the root. `owners` index the requests of the batch.
    `mandatory` tokens are verified whatever they cost, as sampled draft tokens are.
    """

    drafter_survival: FloatArray
    parents: IntArray
    kinds: IntArray
    owners: IntArray
    mandatory: BoolArray

    def __len__(self) -> int:
        return len(self.drafter_survival)

    @classmethod
    @cache
    def empty(cls) -> Candidates:
        """No candidates."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(0), empty, empty, empty, np.zeros(0, dtype=bool))

    @classmethod
    def from_drafts(cls, drafts: Sequence[Draft], kind: Callable[[str, int], int]) -> Candidates:
        """Concatenate drafts; `kind` maps a source and an owner to a calibration kind."""
        sizes = [len(draft) for draft in drafts]
        offsets = np.repeat(np.cumsum([0, *sizes])[:-1], sizes)
        empty = cls.empty()
        parents = np.concatenate([empty.parents, *(draft.parents for draft in drafts)])
        sources = [draft.source or ("",) * len(draft) for draft in drafts]
        return cls(
            np.concatenate([empty.drafter_survival, *map(drafter_survival, drafts)]),
            np.where(parents == ROOT, -1, parents + offsets),
            assign_kinds(sources, kind),
            np.repeat(np.arange(len(drafts)), sizes),
            np.concatenate([empty.mandatory, *(draft.sampled for draft in drafts)]),
        )

    @classmethod
    def from_chains(
        cls, drafter_survival: FloatArray, sizes: IntArray, kinds: IntArray, sampled: BoolArray
    ) -> Candidates:
        """Concatenate chains of these sizes; the tokens of `sampled` chains are mandatory."""
        parents, owners = chain_arrays(sizes)
        return cls(drafter_survival, parents, kinds, owners, sampled[owners])

    @classmethod
    def from_acceptance(cls, acceptance: FloatArray, sizes: IntArray) -> Candidates:
        """Chains of draft tokens that are not known yet, with the acceptance probability of each."""
        kinds, sampled = np.zeros(len(acceptance), dtype=np.int64), np.zeros(len(sizes), dtype=bool)
        return cls.from_chains(acceptance, sizes, kinds, sampled)

    @property
    def arrays(self) -> CandidateArrays:
        """All fields, as compiled functions take them."""
        return self.drafter_survival, self.parents, self.kinds, self.owners, self.mandatory

    def select(self, keep: BoolArray) -> Candidates:
        """The candidates under the mask, which must include the ancestors of each."""
        return Candidates(*select_arrays(self.arrays, keep))


@compiled
def chain_arrays(sizes: IntArray) -> tuple[IntArray, IntArray]:
    """Parents and owners of concatenated chains."""
    parents, owners = np.empty(sizes.sum(), dtype=np.int64), np.empty(sizes.sum(), dtype=np.int64)
    node = 0
    for owner in range(len(sizes)):
        for depth in range(sizes[owner]):
            parents[node], owners[node] = -1 if depth == 0 else node - 1, owner
            node += 1
    return parents, owners


@compiled
def leading_mask(sizes: IntArray, num_leading: IntArray) -> BoolArray:
    """Mask of the first `num_leading[i]` tokens of each chain i of `sizes[i]` tokens."""
    out = np.empty(sizes.sum(), dtype=np.bool_)
    node = 0
    for owner in range(len(sizes)):
        for depth in range(sizes[owner]):
            out[node] = depth < num_leading[owner]
            node += 1
    return out


@compiled
def select_arrays(arrays: CandidateArrays, keep: BoolArray) -> CandidateArrays:
    """The arrays under a mask, with parents renumbered."""
    drafter_survival, parents, kinds, owners, mandatory = arrays
    positions = np.cumsum(keep) - 1
    parent = parents[keep]
    for node in range(len(parent)):
        if parent[node] >= 0:
            parent[node] = positions[parent[node]]
    return drafter_survival[keep], parent, kinds[keep], owners[keep], mandatory[keep]


@compiled
def add_ancestors(keep: BoolArray, parents: IntArray) -> None:
    """Extend the mask, in place, by the ancestors of all nodes in it."""
    for node in range(len(keep) - 1, -1, -1):
        if keep[node] and parents[node] >= 0:
            keep[parents[node]] = True


def drafter_survival(draft: Draft) -> npt.NDArray[np.floating[Any]]:
    """Survival of each draft token as its drafter states it, or by `ASSUMED_ACCEPTANCE` if it states none."""
    if draft.survival is not None:
        return draft.survival
    if draft.is_chain:
        return np.cumprod(np.full(len(draft), ASSUMED_ACCEPTANCE))
    depths = [len(draft.path(node)) for node in range(len(draft))]
    return np.array([ASSUMED_ACCEPTANCE**depth for depth in depths], dtype=np.float64)


def assign_kinds(sources: Sequence[Sequence[str]], kind: Callable[[str, int], int]) -> IntArray:
    """Calibration kind of each draft token, given the sources of each request's tokens."""
    numbers: list[int] = []
    sizes: list[int] = []
    for owner, names in enumerate(sources):
        if names and names.count(names[0]) == len(names):  # fast path: one drafter
            numbers.append(kind(names[0], owner))
            sizes.append(len(names))
        else:
            runs = [(kind(name, owner), len(list(run))) for name, run in groupby(names)]
            numbers += [number for number, _ in runs]
            sizes += [size for _, size in runs]
    return np.repeat(np.array(numbers, dtype=np.int64), sizes)


def select_drafts(drafts: Sequence[Draft], keep: BoolArray) -> list[Draft]:
    """Restrict drafts to the nodes under a mask over all of them, draft after draft."""
    sizes = np.array([len(draft) for draft in drafts], dtype=np.int64)
    ends = np.cumsum(sizes)
    before = np.concatenate([[0], np.cumsum(keep)])
    num_leading = before[ends] - before[ends - sizes]
    ranks = np.arange(len(keep)) - np.repeat(ends - sizes, sizes)
    if (keep == (ranks < np.repeat(num_leading, sizes))).all():  # only prefixes, as with chains
        return [draft.truncate(num) for draft, num in zip(drafts, num_leading.tolist(), strict=True)]
    return [
        draft.select(keep[end - len(draft) : end]) for draft, end in zip(drafts, ends.tolist(), strict=True)
    ]
