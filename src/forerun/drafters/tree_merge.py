"""Merging the drafts of several drafters into one tree, and splitting the outcome by drafter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np

from forerun.types import ROOT, Draft, FloatArray, Proposal, Tokens, Verdict

SOURCE_SEPARATOR: Final = "+"
"""Joins the names of drafters that proposed the same token."""


@cache
def sources_of(source: str) -> tuple[str, ...]:
    """The names of the drafters that proposed a token."""
    return tuple(source.split(SOURCE_SEPARATOR))


def merge(drafts: Sequence[Draft]) -> Draft:
    """Merge drafts into one tree: sampled nodes first and unchanged, then chosen nodes by survival.

    Equal chosen siblings become one node. A chosen token equal to a sampled sibling is dropped in its favour:
    chosen nodes may depend on the values of sampled ones before them. Sampled drafts stand side by side, in
    the order in which they are given: equal tokens of two of them stay two nodes.
    """
    drafts = [draft for draft in drafts if len(draft)]
    if len(drafts) <= 1:
        return drafts[0] if drafts else Draft.chain([])
    sampled_drafts = [draft for draft in drafts if draft.sampled.any()]
    tree = _Tree()
    for draft in sampled_drafts:
        tree.add(draft, verbatim=True)
    for draft in drafts:
        if not draft.sampled.any():
            tree.add(draft)
    return tree.draft(sampled_drafts)


class _Tree:
    """Nodes in the order of insertion, parents first."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._sources: list[str] = []
        self._survival: list[float] = []
        self._num_sampled = 0

    def add(self, draft: Draft, *, verbatim: bool = False) -> None:
        """Add the nodes of a draft; equal siblings are merged unless `verbatim`.

        Survival is capped by that of the parent, whatever the drafter states. Sampled parents impose no cap.
        """
        nodes_here: list[int] = []
        survivals = [0.0] * len(draft) if draft.survival is None else draft.survival.tolist()
        nodes = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.source, survivals, strict=True)
        for token, parent, source, survival in nodes:
            parent_node = ROOT if parent == ROOT else nodes_here[parent]
            node = None if verbatim else self._children.get((parent_node, token))
            if node is None:
                node = self._append(token, parent_node, source)
                self._children.setdefault((parent_node, token), node)
            elif source not in sources_of(self._sources[node]):
                self._sources[node] += SOURCE_SEPARATOR + source
            max_survival = (
                1.0 if parent_node == ROOT or parent_node < self._num_sampled else self._survival[parent_node]
            )
            self._survival[node] = max(self._survival[node], min(survival, max_survival))
            nodes_here.append(node)
        if verbatim:
            self._num_sampled = len(self._tokens)

    def _append(self, token: int, parent: int, source: str) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._sources.append(source)
        self._survival.append(0.0)
        return len(self._tokens) - 1

    def draft(self, sampled_drafts: Sequence[Draft]) -> Draft:
        """The merged tree, starting with the nodes of the sampled drafts."""
        first = self._num_sampled
        survival = np.array(self._survival, dtype=np.float32)
        order = np.concatenate([np.arange(first), first + np.argsort(-survival[first:], kind="stable")])
        new_index = np.empty(len(order) + 1, dtype=np.int64)
        new_index[order] = np.arange(len(order))
        new_index[ROOT] = ROOT
        sampled = np.zeros(len(order), dtype=bool)
        if sampled_drafts:
            sampled[:first] = np.concatenate([draft.sampled for draft in sampled_drafts])
        return Draft(
            tokens=np.array(self._tokens, dtype=np.int64)[order],
            parents=new_index[np.array(self._parents, dtype=np.int64)[order]],
            sampled=sampled,
            q=_side_by_side(sampled_drafts),
            source=tuple(self._sources[node] for node in order.tolist()),
            survival=survival[order],
        )


def _side_by_side(drafts: Sequence[Draft]) -> Mapping[int, Proposal | tuple[Proposal, ...]]:
    """The distributions of sampled drafts whose nodes follow each other and share the root."""
    if len(drafts) == 1:
        return drafts[0].q
    q: dict[int, Proposal | tuple[Proposal, ...]] = {}
    at_root: list[Proposal] = []
    offset = 0
    for draft in drafts:
        of_nodes = draft.proposals_of_nodes()
        at_root += [proposal for node, proposal in of_nodes.items() if draft.parents[node] == ROOT]
        q |= {parent + offset: each for parent, each in draft.q.items() if parent != ROOT}
        offset += len(draft)
    return q | {ROOT: tuple(at_root)} if at_root else q


def best_path(draft: Draft, survival: FloatArray) -> Draft:
    """The path of a tree that emits most tokens in expectation: the largest sum of survivals from the root.

    Of equal paths the first one is taken. The tree has no sampled nodes.
    """
    totals: list[float] = []
    for parent, value in zip(draft.parents.tolist(), survival.tolist(), strict=True):
        totals.append(value + (0.0 if parent == ROOT else totals[parent]))
    kept = np.zeros(len(draft), dtype=bool)
    kept[draft.path(int(np.argmax(totals)))] = True
    return draft.select(kept)


def verified_part(draft: Draft, verified: Draft) -> Draft:
    """The nodes of one drafter's draft that the verified draft contains.

    Sampled nodes are verified all or, where the engine preferred another draft, not at all.
    """
    if draft.sampled.any():
        return draft if verified.sampled.any() else Draft.chain([])
    if draft.is_chain and verified.is_chain:
        return draft.truncate(_common_prefix(draft.tokens.tolist(), verified.tokens.tolist()))
    nodes = {
        each: node
        for node, each in enumerate(zip(verified.parents.tolist(), verified.tokens.tolist(), strict=True))
    }
    found: list[int | None] = []
    for parent, token in zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True):
        above = ROOT if parent == ROOT else found[parent]
        found.append(None if above is None else nodes.get((above, token)))
    return draft.select(np.array([node is not None for node in found], dtype=bool))


def verdict_for(draft: Draft, output: Tokens) -> Verdict:
    """Verdict on a draft given the tokens emitted in the step; the last of them is the target's own."""
    drafted = output[: len(output) - 1]
    if draft.is_chain:
        num_accepted = _common_prefix(draft.tokens.tolist(), list(drafted))
        return Verdict(tuple(range(num_accepted)), int(output[num_accepted]))
    accepted = descend(draft.parents.tolist(), draft.tokens.tolist(), drafted)
    return Verdict(tuple(accepted), int(output[len(accepted)]))


def _common_prefix(one: list[int], other: list[int]) -> int:
    """The number of leading tokens that two lists share."""
    num = min(len(one), len(other))
    if one[:num] == other[:num]:  # the most frequent case, compared without a loop
        return num
    return next(index for index in range(num) if one[index] != other[index])


def descend(parents: Sequence[int], tokens: Sequence[int], output: Iterable[int]) -> list[int]:
    """Path from the root along these tokens, as far as the tree contains them."""
    children = {each: node for node, each in enumerate(zip(parents, tokens, strict=True))}
    path: list[int] = []
    for token in output:
        node = children.get((path[-1] if path else ROOT, int(token)))
        if node is None:
            break
        path.append(node)
    return path
