"""A custom drafter: propose the tokens that followed the last earlier occurrence of the current token.

PYTHONPATH=examples/serving forerun serve MODEL --drafter echo_drafter:EchoDrafter
"""

from collections.abc import Sequence

from forerun import Draft, RequestView, Verdict


class EchoDrafter:
    """Keeps no state between steps. Errors of a drafter cost draft tokens and never change the output."""

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """A draft of at most its budget, and at most 4 tokens, for every request."""
        return [self._echo(list(view.tokens[:]), budget) for view, budget in zip(views, budgets, strict=True)]

    def _echo(self, tokens: list[int], budget: int) -> Draft:
        matches = [index for index, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        continuation = tokens[matches[-1] + 1 :][: min(budget, 4)] if matches else []
        return Draft.chain(continuation, source="echo")

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Called with the verdict on every draft; a drafter can update its statistics here."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Called when a request ends; a drafter drops its state of the request here."""
