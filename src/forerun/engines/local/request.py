"""What is asked of the engine, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forerun.errors import ForerunError, InvalidRequest
from forerun.types import Draft, SamplingParams, Verdict

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, how its answer is drawn, when it ends, and how far may be guessed.

    `stop` are texts and token ids that end the answer; the model's own end tokens do too unless `ignore_end`.
    `drafters` are asked together, everybody the engine has by default; `max_draft` 0 is plain decoding.
    `salt`: text is shared, where sharing is on, only between requests of one salt.
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
                    f"stop holds {each!r}, a {type(each).__name__}; it may hold texts and token ids"
                )


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """Guesses of one drafter: how many were checked, and how many stood."""

    num_guesses: int = 0
    num_accepted: int = 0

    @property
    def acceptance(self) -> float:
        """The share of guesses that stood."""
        return self.num_accepted / self.num_guesses if self.num_guesses else 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """What an answer took: passes of the target that gave it a token, guesses, seconds."""

    num_tokens: int = 0
    num_passes: int = 0
    num_guesses: int = 0
    num_accepted: int = 0
    seconds_to_first: float = 0.0
    seconds: float = 0.0
    by_drafter: Mapping[str, DrafterStats] = field(default_factory=dict)

    @property
    def tokens_per_pass(self) -> float:
        """Plain decoding has 1."""
        return self.num_tokens / self.num_passes if self.num_passes else 0.0

    @property
    def acceptance(self) -> float:
        """The share of guesses that stood."""
        return self.num_accepted / self.num_guesses if self.num_guesses else 0.0

    def as_json(self) -> dict[str, Any]:
        """Everything as values."""
        return {
            "tokens": self.num_tokens,
            "passes": self.num_passes,
            "tokens_per_pass": self.tokens_per_pass,
            "guesses": self.num_guesses,
            "accepted": self.num_accepted,
            "acceptance": self.acceptance,
            "seconds_to_first": self.seconds_to_first,
            "seconds": self.seconds,
            "by_drafter": {
                name: {"guesses": each.num_guesses, "accepted": each.num_accepted}
                for name, each in self.by_drafter.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Result:
    """An answer. `finish_reason` says why it ended; with "error", `error` says what went wrong."""

    id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats = field(default_factory=Stats)
    error: ForerunError | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything as values."""
        return {
            "id": self.id,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stats": self.stats.as_json(),
        } | ({} if self.error is None else {"error": str(self.error)})


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What a step did for a request: tokens committed, the text that is sure by now, and how it went.

    Of draft and verdict all is there, also what a stop cut off. `result` comes with the last update.
    `survival` are the probabilities that the controller chose the draft tokens with.
    """

    id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    draft: Draft = field(default_factory=lambda: Draft.chain([]))
    verdict: Verdict | None = None
    result: Result | None = None
    survival: tuple[float, ...] = ()
