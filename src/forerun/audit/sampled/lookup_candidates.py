"""Tokens that a lookup drafter can propose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from forerun.servers.completions import Token


def lookup_candidates(tokens: Sequence[Token]) -> frozenset[Token]:
    """Tokens after earlier occurrences of the last token: a superset of any lookup drafter's next token."""
    if not tokens:
        return frozenset()
    last = tokens[-1]
    return frozenset(after for token, after in pairwise(tokens) if token == last)
