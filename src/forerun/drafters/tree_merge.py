"""Merging the drafts of several drafters into one tree, and splitting the outcome by drafter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from forerun.drafters.match_tree import SURVIVAL
from forerun.types import ROOT, Draft, Tokens, Verdict

SOURCE_SEPARATOR: Final = "+"
"""Joins the names of drafters that proposed the same token."""


def merge(drafts: Sequence[Draft]) -> Draft:
    """Merge drafts into one tree: sampled nodes first and unchanged, then chosen nodes by survival.

    Equal chosen siblings become one node. A chosen token equal to a sampled sibling is dropped in its favour:
    chosen nodes may depend on the values of sampled ones before them. Of several drafts with sampled tokens
    only the first is used, whatever their values, because two distributions cannot share a parent.
    """
    drafts = [draft for draft in drafts if len(draft)]
    if len(drafts) <= 1:
        return drafts[0] if drafts else Draft.chain([])
    sampled_drafts = [draft for draft in drafts if draft.sampled.any()][:1]
    tree = _Tree()
    for draft in sampled_drafts:
        tree.add(draft, verbatim=True)
    for draft in drafts:
        if not draft.sampled.any():
            tree.add(draft)
    return tree.draft(sampled_drafts[0] if sampled_drafts else None)


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
        survivals = [0.0] * len(draft) if draft.evidence is None else draft.evidence[:, SURVIVAL].tolist()
        nodes = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.source, survivals, strict=True)
        for token, parent, source, survival in nodes:
            parent_node = ROOT if parent == ROOT else nodes_here[parent]
            node = None if verbatim else self._children.get((parent_node, token))
            if node is None:
                node = self._append(token, parent_node, source)
                self._children.setdefault((parent_node, token), node)
            elif source not in self._sources[node].split(SOURCE_SEPARATOR):
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

    def draft(self, sampled_draft: Draft | None) -> Draft:
        """The merged tree, starting with the nodes of the sampled draft."""
        first = 0 if sampled_draft is None else len(sampled_draft)
        survival = np.array(self._survival, dtype=np.float32)
        order = np.concatenate([np.arange(first), first + np.argsort(-survival[first:], kind="stable")])
        new_index = np.empty(len(order) + 1, dtype=np.int64)
        new_index[order] = np.arange(len(order))
        new_index[ROOT] = ROOT
        sampled = np.zeros(len(order), dtype=bool)
        if sampled_draft is not None:
            sampled[:first] = sampled_draft.sampled
        return Draft(
            tokens=np.array(self._tokens, dtype=np.int64)[order],
            parents=new_index[np.array(self._parents, dtype=np.int64)[order]],
            sampled=sampled,
            q={} if sampled_draft is None else sampled_draft.q,
            source=tuple(self._sources[node] for node in order.tolist()),
            evidence=survival[order, None],
        )


def verdict_for(draft: Draft, output: Tokens) -> Verdict:
    """Verdict on a draft given the tokens emitted in the step; the last of them is the target's own."""
    accepted = descend(draft.parents.tolist(), draft.tokens.tolist(), output[: len(output) - 1])
    return Verdict(tuple(accepted), int(output[len(accepted)]))


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
