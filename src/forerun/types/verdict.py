"""The outcome of verification."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.types.draft import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of verifying one draft.

    A step commits the accepted draft tokens and one more token: between 1 and depth + 1 tokens.

    Attributes:
        accepted: The accepted nodes, a path from the root in order.
        next_token: The token after them: the bonus token if the path ends at a leaf, otherwise the recovered
            token, which replaces the rejected draft tokens.

    Examples:
        >>> Verdict((0, 1), 9).tokens(Draft.chain([5, 6, 7]))
        [5, 6, 9]
    """

    accepted: tuple[int, ...]
    next_token: int

    def tokens(self, draft: Draft) -> list[int]:
        """The tokens that the step commits: the accepted draft tokens, then `next_token`."""
        tokens = draft.tokens.tolist()
        return [*(tokens[node] for node in self.accepted), self.next_token]
