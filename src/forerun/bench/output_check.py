"""Are a contestant's words those of its plain one?

At temperature 0 they should be the same, token for token, up to near-ties: where two answers first part, the
model is asked in float32 how far apart the two tokens are. With a seed, servers that draw differently say
different words and may both be right; how many are the same is told, and `forerun audit sampled` decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forerun.bench.record import BenchRecord, OutputRuling, RecordedAnswer
from forerun.bench.suites import Question
from forerun.errors import ForerunError
from forerun.servers.endpoint import END
from forerun.types import SamplingParams

if TYPE_CHECKING:
    from forerun.audit.parity.near_ties import NearTieReferee

Rule = Callable[[OutputRuling, RecordedAnswer, RecordedAnswer], OutputRuling]
"""Who knows about ties: a parting, the plain answer and the other one."""


def first_differences(record: BenchRecord) -> Iterator[tuple[OutputRuling, RecordedAnswer, RecordedAnswer]]:
    """Greedy answers that part from the plain one's and that nobody has ruled on, with both answers."""
    for plain, mine in pairs(record):
        if mine.place.temperature or (mine.place, mine.who) in record.rulings:
            continue
        at = first_difference(plain.words, mine.words)
        if at is not None:
            yield OutputRuling(mine.place, mine.who, at), plain, mine


def pairs(record: BenchRecord) -> Iterator[tuple[RecordedAnswer, RecordedAnswer]]:
    """Every answer with the plain one's at the same place, but for those of the plain ones themselves."""
    facts = record.systems()
    for (place, who), mine in record.answers.items():
        plain = record.answers.get((place, facts[who]["plain"]))
        if plain is not None and plain is not mine and not plain.error and not mine.error:
            yield plain, mine


def first_difference(plain: Sequence[object], mine: Sequence[object]) -> int | None:
    """The first token, or letter, at which two answers differ; one that ends early differs at its end."""
    longest = max(len(plain), len(mine))
    return next((at for at in range(longest) if plain[at : at + 1] != mine[at : at + 1]), None)


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """Of so many answers: how many are the same, part over a near-tie, differ, or nobody knows."""

    num: int
    same: int
    near_ties: int = 0
    differences: int = 0
    undecided: int = 0
    drawn: bool = False

    @property
    def honest(self) -> bool:
        """Whether no difference was found; drawn words are not judged."""
        return not self.differences

    @property
    def doubtful(self) -> bool:
        """Whether answers part and nobody could say if over a near-tie."""
        return bool(self.undecided)

    def told(self) -> str:
        """In a few words, for a table."""
        if not self.num:
            return "not compared"
        if self.drawn:
            return f"{self.same} of {self.num} the same by seed"
        if self.same == self.num:
            return f"all {self.num} the same"
        parts = {"near-ties": self.near_ties, "DIFFERENT": self.differences, "undecided": self.undecided}
        return ", ".join(
            [f"{self.same} of {self.num} the same", *(f"{num} {name}" for name, num in parts.items() if num)]
        )


def compare_outputs(record: BenchRecord, who: str, temperature: float, width: int) -> OutputComparison:
    """How a contestant's words compare, at a temperature and a width."""

    def mine(each: RecordedAnswer | OutputRuling) -> bool:
        place = each.place
        return (each.who, place.temperature, place.width) == (who, temperature, width)

    compared = [(plain, other) for plain, other in pairs(record) if mine(other)]
    same = sum(first_difference(plain.words, other.words) is None for plain, other in compared)
    if temperature:
        return OutputComparison(len(compared), same, drawn=True)
    found = Counter(each.finding for each in record.rulings.values() if mine(each))
    ties, differences = found["near-tie"], found["difference"]
    return OutputComparison(len(compared), same, ties, differences, len(compared) - same - ties - differences)


def ruled(
    referee: NearTieReferee, encode: Callable[[str], Sequence[int]], questions: Sequence[Question]
) -> Rule:
    """A rule by a model in float32; answers that are text alone, or of other tokens, stay undecided. Messages
    are encoded as the model's chats are.
    """

    def rule(parting: OutputRuling, plain: RecordedAnswer, mine: RecordedAnswer) -> OutputRuling:
        at = parting.at
        if not plain.token_ids or not mine.token_ids:
            return parting
        prompt = encode(questions[parting.place.number % len(questions)].text)
        one, other = (each.token_ids[at] if at < len(each.token_ids) else END for each in (plain, mine))
        try:
            found = referee.rule(prompt, plain.token_ids[:at], (one, other), SamplingParams(temperature=0.0))
        except ForerunError:
            return parting
        return replace(parting, gap=found.gap, bound=found.bound)

    return rule
