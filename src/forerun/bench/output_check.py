"""Comparison of every system's output with its baseline's.

At temperature 0 the outputs must be identical, token for token, up to near-ties: at the first difference a
reference model in float32 measures the gap between the two tokens. With a seed, engines that sample
differently emit different tokens and can both be correct; the report counts identical outputs, and
`forerun audit sampled` tests the distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forerun.bench.record import BenchRecord
from forerun.bench.recorded_answer import OutputRuling, RecordedAnswer
from forerun.bench.suites import Question
from forerun.errors import ForerunError
from forerun.servers.completions import END
from forerun.types import SamplingParams

if TYPE_CHECKING:
    from forerun.audit.parity.near_ties import NearTieReferee

Classifier = Callable[[OutputRuling, RecordedAnswer, RecordedAnswer], OutputRuling]
"""Completes an undecided ruling, given the baseline's answer and the other."""


def first_differences(record: BenchRecord) -> Iterator[tuple[OutputRuling, RecordedAnswer, RecordedAnswer]]:
    """Greedy answers that differ from the baseline's and have no ruling yet, with both answers."""
    for baseline, other in pairs(record):
        if other.case.temperature or (other.case, other.system) in record.rulings:
            continue
        position = first_difference(baseline.output, other.output)
        if position is not None:
            yield OutputRuling(other.case, other.system, position), baseline, other


def pairs(record: BenchRecord) -> Iterator[tuple[RecordedAnswer, RecordedAnswer]]:
    """Every answer with the baseline's to the same case, except those of the baselines themselves."""
    facts = record.systems()
    for (case, system), answer in record.answers.items():
        baseline = record.answers.get((case, facts[system]["baseline"]))
        if baseline is not None and baseline is not answer and not baseline.error and not answer.error:
            yield baseline, answer


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first position at which two outputs differ; the end of the shorter one counts as a difference."""
    longest = max(len(one), len(other))
    return next((at for at in range(longest) if one[at : at + 1] != other[at : at + 1]), None)


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """Counts of `num` compared outputs by result. Sampled outputs are identical or not, without a verdict."""

    num: int
    num_identical: int
    num_near_ties: int = 0
    num_different: int = 0
    num_undecided: int = 0
    sampled: bool = False

    @property
    def passed(self) -> bool:
        """Whether no difference beyond near-ties was found."""
        return not self.num_different

    @property
    def is_undecided(self) -> bool:
        """Whether outputs differ that no reference model has classified."""
        return bool(self.num_undecided)

    def summary(self) -> str:
        """The counts as a table cell."""
        if not self.num:
            return "not compared"
        identical = f"{self.num_identical}/{self.num} identical"
        if self.sampled:
            return f"{identical} by seed"
        counts = {
            "near-ties": self.num_near_ties,
            "DIFFERENT": self.num_different,
            "undecided": self.num_undecided,
        }
        return ", ".join([identical, *(f"{num} {name}" for name, num in counts.items() if num)])


def compare_outputs(
    record: BenchRecord, system: str, temperature: float, concurrency: int
) -> OutputComparison:
    """Compare a system's outputs at a setting with its baseline's."""

    def applies(each: RecordedAnswer | OutputRuling) -> bool:
        case = each.case
        return (each.system, case.temperature, case.concurrency) == (system, temperature, concurrency)

    compared = [(baseline, other) for baseline, other in pairs(record) if applies(other)]
    identical = sum(first_difference(baseline.output, other.output) is None for baseline, other in compared)
    if temperature:
        return OutputComparison(len(compared), identical, sampled=True)
    verdicts = Counter(each.verdict for each in record.rulings.values() if applies(each))
    ties, different = verdicts["near-tie"], verdicts["difference"]
    undecided = len(compared) - identical - ties - different
    return OutputComparison(len(compared), identical, ties, different, undecided)


def near_tie_classifier(
    referee: NearTieReferee, encode: Callable[[str], Sequence[int]], questions: Sequence[Question]
) -> Classifier:
    """A classifier that asks a reference model in float32. `encode` applies the model's chat template.

    Answers without token ids, or with ids that the model does not have, stay undecided.
    """

    def classify(ruling: OutputRuling, baseline: RecordedAnswer, other: RecordedAnswer) -> OutputRuling:
        at = ruling.position
        if not baseline.token_ids or not other.token_ids:
            return ruling
        prompt = encode(questions[ruling.case.number % len(questions)].text)
        tokens = [each.token_ids[at] if at < len(each.token_ids) else END for each in (baseline, other)]
        try:
            found = referee.classify(
                prompt, baseline.token_ids[:at], (tokens[0], tokens[1]), SamplingParams(temperature=0.0)
            )
        except ForerunError:
            return ruling
        return replace(ruling, gap=found.gap, bound=found.bound)

    return classify
