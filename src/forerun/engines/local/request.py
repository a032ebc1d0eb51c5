"""Requests to the engine, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from forerun.errors import ForerunError, InvalidRequest
from forerun.types import Draft, SamplingParams, Verdict

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, its sampling parameters, its stop conditions and its speculation settings.

    `stop` are texts and token ids that end the output; end-of-sequence tokens do too unless `ignore_end`.
    `drafters` draft together, by default all of the engine's; `max_draft` 0 is non-speculative decoding.
    `salt`: outputs are shared, where sharing is enabled, only between requests with the same salt.
    `prediction` are tokens that the output is expected to repeat in large part. `invariant` is an error
    unless the engine runs in invariant mode.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int = 128
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    stop: tuple[str | int, ...] = ()
    ignore_end: bool = False
    max_draft: int | None = None
    drafters: tuple[str, ...] | None = None
    lenience: float | None = None
    salt: str | None = None
    prediction: tuple[int, ...] | None = None
    invariant: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidRequest("the prompt is empty: give at least one token")
        if self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.max_draft is not None and self.max_draft < 0:
            raise InvalidRequest(f"max_draft is {self.max_draft}; it must be at least 0")
        if self.lenience is not None and not 0 < self.lenience <= 1:
            raise InvalidRequest(f"lenience is {self.lenience}; it must be more than 0 and at most 1")
        for each in self.stop:
            if isinstance(each, bool) or not isinstance(each, str | int) or each == "":
                raise InvalidRequest(
                    f"stop holds {each!r}, a {type(each).__name__}; expected texts and token ids"
                )


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """Verified and accepted draft tokens of one drafter."""

    num_draft_tokens: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over verified draft tokens."""
        return self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of one output. A step is a target forward pass that emitted tokens for it."""

    num_tokens: int = 0
    num_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    ttft_seconds: float = 0.0
    seconds: float = 0.0
    by_drafter: Mapping[str, DrafterStats] = field(default_factory=dict)

    @property
    def tokens_per_step(self) -> float:
        """Tokens emitted per target forward pass; non-speculative decoding has 1."""
        return self.num_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over verified draft tokens."""
        return self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "tokens": self.num_tokens,
            "steps": self.num_steps,
            "tokens_per_step": self.tokens_per_step,
            "draft_tokens": self.num_draft_tokens,
            "accepted": self.num_accepted,
            "acceptance_rate": self.acceptance_rate,
            "ttft_seconds": self.ttft_seconds,
            "seconds": self.seconds,
            "by_drafter": {
                name: {"draft_tokens": each.num_draft_tokens, "accepted": each.num_accepted}
                for name, each in self.by_drafter.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Result:
    """The output of a request. `error` is set where `finish_reason` is "error"."""

    id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats = field(default_factory=Stats)
    error: ForerunError | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {
            "id": self.id,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stats": self.stats.as_json(),
        } | ({} if self.error is None else {"error": str(self.error)})


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One request's outcome of a step: the tokens committed, the text that is final now, draft and verdict.

    `draft` and `verdict` include tokens that a stop cut off. The last update has a `result`. `survival` are
    the probabilities with which the controller chose the draft tokens.
    """

    id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    draft: Draft = field(default_factory=lambda: Draft.chain([]))
    verdict: Verdict | None = None
    result: Result | None = None
    survival: tuple[float, ...] = ()


def request_factory(settings: Mapping[str, Any]) -> Callable[[str, tuple[int, ...]], Request]:
    """A function that makes requests with these settings; raises if one of them is unknown."""
    given = dict(settings)
    known = {each.name for each in fields(SamplingParams)}
    sampling = SamplingParams(**{name: given.pop(name) for name in known & given.keys()})
    unknown = given.keys() - {each.name for each in fields(Request)} | given.keys() & {
        "id",
        "prompt",
        "sampling",
    }
    if unknown:
        raise InvalidRequest(f"unknown setting {min(unknown)!r}; see SamplingParams and Request")
    stop = given.pop("stop", None) or ()
    given["stop"] = (stop,) if isinstance(stop, str | int) else tuple(stop)
    return lambda name, prompt: Request(id=name, prompt=prompt, sampling=sampling, **given)
