"""Several drafters' guesses in one tree, and each drafter's own part of the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from forerun.drafters.match_tree import SURVIVAL
from forerun.types import ROOT, Draft, Tokens, Verdict

BETWEEN: Final = "+"
"""Joins the names of drafters that made the same guess."""


def merge(drafts: Sequence[Draft]) -> Draft:
    """One tree of several: drawn guesses first and as they are, then chosen ones by survival.

    Equal chosen guesses become one node, and one that equals a drawn sibling is left to it: chosen nodes may
    depend on what was drawn before them. Of several drafts with drawn guesses the first is taken, before
    anybody looks at a value: two distributions cannot share a parent.
    """
    drafts = [draft for draft in drafts if len(draft)]
    if len(drafts) <= 1:
        return drafts[0] if drafts else Draft.chain([])
    drawn = [draft for draft in drafts if draft.sampled.any()][:1]
    tree = _Tree()
    for draft in drawn:
        tree.add(draft, as_it_is=True)
    for draft in drafts:
        if not draft.sampled.any():
            tree.add(draft)
    return tree.draft(drawn[0] if drawn else None)


class _Tree:
    """Nodes as they come in, which is parents first."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._sources: list[str] = []
        self._survival: list[float] = []
        self._drawn = 0

    def add(self, draft: Draft, *, as_it_is: bool = False) -> None:
        """Take the nodes of a draft, equal ones once unless it is to stay as it is.

        No guess is thought likelier than the one it follows, whatever its drafter says; of drawn ones nothing
        is thought.
        """
        here: list[int] = []
        survivals = [0.0] * len(draft) if draft.evidence is None else draft.evidence[:, SURVIVAL].tolist()
        nodes = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.source, survivals, strict=True)
        for token, parent, source, survival in nodes:
            above = ROOT if parent == ROOT else here[parent]
            node = None if as_it_is else self._children.get((above, token))
            if node is None:
                node = self._append(token, above, source)
                self._children.setdefault((above, token), node)
            elif source not in self._sources[node].split(BETWEEN):
                self._sources[node] += BETWEEN + source
            bound = 1.0 if above == ROOT or above < self._drawn else self._survival[above]
            self._survival[node] = max(self._survival[node], min(survival, bound))
            here.append(node)
        if as_it_is:
            self._drawn = len(self._tokens)

    def _append(self, token: int, parent: int, source: str) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._sources.append(source)
        self._survival.append(0.0)
        return len(self._tokens) - 1

    def draft(self, drawn: Draft | None) -> Draft:
        """The tree, its first nodes those of the drawn draft."""
        first = 0 if drawn is None else len(drawn)
        survival = np.array(self._survival, dtype=np.float32)
        order = np.concatenate([np.arange(first), first + np.argsort(-survival[first:], kind="stable")])
        place = np.empty(len(order) + 1, dtype=np.int64)
        place[order] = np.arange(len(order))
        place[ROOT] = ROOT
        sampled = np.zeros(len(order), dtype=bool)
        if drawn is not None:
            sampled[:first] = drawn.sampled
        return Draft(
            tokens=np.array(self._tokens, dtype=np.int64)[order],
            parents=place[np.array(self._parents, dtype=np.int64)[order]],
            sampled=sampled,
            q={} if drawn is None else drawn.q,
            source=tuple(self._sources[node] for node in order.tolist()),
            evidence=survival[order, None],
        )


def verdict_for(draft: Draft, said: Tokens) -> Verdict:
    """What became of a draft if these tokens were said: the last of them is the target's own."""
    accepted = descend(draft.parents.tolist(), draft.tokens.tolist(), said[: len(said) - 1])
    return Verdict(tuple(accepted), int(said[len(accepted)]))


def descend(parents: Sequence[int], tokens: Sequence[int], said: Iterable[int]) -> list[int]:
    """The nodes of a tree that say these tokens, from the root as far as there are any."""
    children = {each: node for node, each in enumerate(zip(parents, tokens, strict=True))}
    path: list[int] = []
    for token in said:
        node = children.get((path[-1] if path else ROOT, int(token)))
        if node is None:
            break
        path.append(node)
    return path
