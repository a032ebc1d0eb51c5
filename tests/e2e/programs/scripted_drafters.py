"""Two drafters for the same request: one proposes four right tokens, one a right token and a wrong one.

The environment variable SCRIPTED_TEXT has the request's whole text as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from forerun.types import Draft, RequestView, Verdict

accepted: dict[str, list[int]] = {}
"""Numbers of accepted tokens of each drafter, verdict by verdict."""


class Right:
    """Proposes the next four tokens of the text."""

    def __init__(self) -> None:
        self.text: list[int] = json.loads(os.environ["SCRIPTED_TEXT"])
        self.log = accepted.setdefault(type(self).__name__, [])

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        chains = [self.chain(self.text[len(view.tokens) :][:4]) for view in views]
        return [Draft.chain(chain[:budget]) for chain, budget in zip(chains, budgets, strict=True)]

    def chain(self, following: list[int]) -> list[int]:
        return following

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        if id not in {"warm-up", "warm-up again"}:
            self.log.append(len(verdict.accepted))

    def forget(self, id: str) -> None:
        pass


class Wrong(Right):
    """Proposes the next token of the text and one that does not follow."""

    def chain(self, following: list[int]) -> list[int]:
        return [following[0], following[1] ^ 1] if len(following) > 1 else following
