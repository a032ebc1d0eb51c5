"""The drafter protocol: a drafter sees views of requests and returns drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forerun.types.arrays import Tokens
from forerun.types.draft import Draft
from forerun.types.sampling import SamplingParams
from forerun.types.top_tokens import TopTokens
from forerun.types.verdict import Verdict

_DEFAULT_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True, eq=False)
class RequestView:
    """Read-only view of a request, as a drafter sees it.

    Attributes:
        id: Identifies the request until `Drafter.forget`.
        tokens: All tokens so far, prompt and output. Not a copy: it grows between two calls of
            `Drafter.propose`, and a drafter continues from the length it saw last.
        num_prompt: Number of prompt tokens at the start of `tokens`; None if unknown.
        salt: The request's `cache_salt`. A drafter may share text only between requests with the same salt.
        sampling: The request's sampling settings.
        prediction: The tokens that the client expects the output to repeat; None without a prediction. Never
            shared between requests.
    """

    id: str
    tokens: Tokens
    num_prompt: int | None = None
    salt: str | None = None
    sampling: SamplingParams = _DEFAULT_SAMPLING
    prediction: Tokens | None = None


@runtime_checkable
class Drafter(Protocol):
    """Proposes drafts; called from one thread at a time.

    Any object with these three methods is a drafter. Exceptions raised here never reach a request: the engine
    counts and logs them, and the request decodes without speculation.
    """

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view, with at most as many nodes as its budget; a shorter or empty draft is valid.

        For draft tokens sampled from a q, the budget is the number to sample: it was fixed before sampling,
        and no sampled token may be dropped because of its value.
        """

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Observe the outcome of a draft. The request's new tokens come with the next `propose`."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop all state of a finished request."""


@runtime_checkable
class LogitsDrafter(Drafter, Protocol):
    """A drafter that also learns from the target's logits."""

    def learn_logits(self, id: str, top_tokens: TopTokens) -> None:  # noqa: A002
        """Observe the likeliest next tokens at the rows of a step, those of rejected draft tokens first.

        Called after `propose` and before `learn`, in steps with and without a draft.
        """
