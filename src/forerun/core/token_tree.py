"""Trees of tokens behind a text, as they grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from forerun.types import ROOT


def tokens_above(
    node: int, tokens: Sequence[int] | Mapping[int, int], parents: Sequence[int] | Mapping[int, int]
) -> list[int]:
    """The tokens from the root of a tree to a node, including its own; none for the root."""
    path: list[int] = []
    while node != ROOT:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]


class TokenTree:
    """Tokens behind a prompt. A node's parent has a lower number; `ROOT` is the end of the prompt."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def child(self, parent: int, token: int) -> int:
        """The node for a token behind another node, created on first use."""
        node = self._children.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def path(self, node: int) -> list[int]:
        """The tokens from the prompt to a node, including its own."""
        return tokens_above(node, self.tokens, self.parents)

    def with_ancestors(self, nodes: Iterable[int]) -> list[int]:
        """The nodes and all nodes above them, parents first."""
        found: set[int] = set()
        for node in nodes:
            while node != ROOT and node not in found:
                found.add(node)
                node = self.parents[node]  # noqa: PLW2901  (walks up the tree)
        return sorted(found)
