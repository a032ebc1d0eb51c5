"""The entries of a results file: answers of systems to cases, and rulings on answers that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forerun.servers.streaming import StreamedAnswer, decode_tokens_per_second, num_steps

TIME_DIGITS: Final = 5
"""Decimal places of recorded seconds."""

MAX_STEAL_SHARE: Final = 0.05
"""Answers during which steal time exceeded this share of CPU time count as disturbed."""


@dataclass(frozen=True, slots=True)
class CaseKey:
    """A question of a run at one temperature and concurrency.

    `number` continues to count where questions repeat to fill a group.
    """

    run: int
    temperature: float
    concurrency: int
    group: int
    number: int
    question: str
    category: str


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer of one system to one case, event by event, or the error in its place.

    Times are in seconds since the start of the group; the request was sent at `sent`. `steal_share` is the
    share of CPU time that the host gave to others meanwhile.
    """

    case: CaseKey
    system: str
    sent: float = 0.0
    times: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    drafted_per_step: tuple[int, ...] | None = None
    accepted_per_step: tuple[int, ...] | None = None
    error: str = ""
    steal_share: float = 0.0

    @classmethod
    def from_stream(
        cls, case: CaseKey, system: str, streamed: StreamedAnswer, group_start: float
    ) -> RecordedAnswer:
        """Convert a streamed answer of a group that started at `group_start`."""
        sent = streamed.sent - group_start
        return cls(
            case,
            system,
            round(sent, TIME_DIGITS),
            tuple(round(sent + each, TIME_DIGITS) for each in streamed.times),
            streamed.counts,
            streamed.num_tokens,
            streamed.token_ids,
            "" if streamed.token_ids else streamed.text,
            streamed.drafted_per_step,
            streamed.accepted_per_step,
        )

    @classmethod
    def read(cls, row: dict[str, Any]) -> RecordedAnswer:
        """Parse a line of a results file."""
        lists = ("times", "counts", "token_ids", "drafted_per_step", "accepted_per_step")
        tuples = {key: None if row[key] is None else tuple(row[key]) for key in lists}
        return cls(**{**row, **tuples, "case": CaseKey(**row["case"])})

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed from the first token to the last."""
        return decode_tokens_per_second(self.times, self.counts, self.num_tokens)

    @property
    def num_later_tokens(self) -> int:
        """Tokens after the first event."""
        return self.num_tokens - self.counts[0]

    @property
    def num_steps(self) -> int | None:
        """Target steps after the first event; none if the server reports no drafts."""
        return num_steps(self.num_later_tokens, self.accepted_per_step)

    @property
    def output(self) -> tuple[int, ...] | str:
        """Token ids, or the text if the server does not return them."""
        return self.token_ids or self.text


@dataclass(frozen=True, slots=True)
class OutputRuling:
    """The first position at which an answer differs from its baseline's, and the gap in float32 between the
    two tokens there. A gap within `bound` is a near-tie; without a reference model the gap is unknown.
    """

    case: CaseKey
    system: str
    position: int
    gap: float | None = None
    bound: float | None = None

    @property
    def verdict(self) -> str:
        """`undecided`, `near-tie` or `difference`."""
        if self.gap is None or self.bound is None:
            return "undecided"
        return "near-tie" if self.gap <= self.bound else "difference"


AnswerKey = tuple[CaseKey, str]
"""A case and the name of a system."""
