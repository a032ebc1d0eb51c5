"""A drafter of one's own: guess that what followed the last token once will follow it again.

PYTHONPATH=examples/serving forerun serve MODEL --drafter echo_drafter:EchoDrafter
"""

from collections.abc import Sequence

from forerun import Draft, RequestView, Verdict


class EchoDrafter:
    """Remembers nothing between steps; errors made here cost guesses, never an answer."""

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """The tokens after the last place where the last token stood before."""
        return [self._echo(list(view.tokens[:]), budget) for view, budget in zip(views, budgets, strict=True)]

    def _echo(self, tokens: list[int], budget: int) -> Draft:
        before = [place for place, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        guesses = tokens[before[-1] + 1 :][: min(budget, 4)] if before else []
        return Draft.chain(guesses, source="echo")

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """What became of a draft: here one could count."""

    def forget(self, id: str) -> None:  # noqa: A002
        """A request is over: here one would drop what is known of it."""
