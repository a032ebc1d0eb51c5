"""Comparison of systems of different runs through the baseline that takes part in each of them.

Machine speed drifts between runs, so speeds of different runs are not compared directly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun.bench.answer_metrics import Pair, are_timed, decoding_speed, throughput
from forerun.bench.ratios import OVERALL, RatioEstimate, ratio_of_medians
from forerun.bench.record import BenchRecord
from forerun.bench.recorded_answer import CaseKey, RecordedAnswer
from forerun.bench.system_names import FORERUN

Speeds = dict[tuple[str, CaseKey], float]
"""Tokens per second by system and case."""


@dataclass(frozen=True, slots=True)
class RelativeSpeeds:
    """Speeds over those of forerun's baseline in the same run: decoding speed by category, one ratio per
    question, and throughput, one ratio per group of requests.
    """

    speeds: dict[str, tuple[float, ...]]
    groups: tuple[float, ...]

    def ratios_to(self, other: RelativeSpeeds, *, throughput: bool) -> dict[str, RatioEstimate]:
        """These speeds over another system's: decoding speed by category, or throughput."""
        if throughput:
            both = (self.groups, other.groups)
            return {OVERALL: ratio_of_medians(*map(np.array, both))} if all(both) else {}
        return {
            name: ratio_of_medians(np.array(self.speeds[name]), np.array(speeds))
            for name, speeds in other.speeds.items()
            if name in self.speeds
        }


def with_shared_baseline(record: BenchRecord, answers: Sequence[RecordedAnswer]) -> list[Pair]:
    """Answers with those of forerun's baseline to the same cases."""
    shared = record.systems().get(FORERUN, {}).get("baseline", "")
    both = [(record.answers.get((each.case, shared)), each) for each in answers]
    return [(baseline, each) for baseline, each in both if baseline is not None and not baseline.error]


def relative_speeds(matched: Sequence[Pair]) -> RelativeSpeeds:
    """Speeds over the shared baseline's."""
    ratios: dict[str, list[float]] = defaultdict(list)
    groups: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for baseline, each in matched:
        groups[each.case.run, each.case.group].append((baseline, each))
        if are_timed(baseline, each):
            ratios[each.case.category].append(decoding_speed(each) / decoding_speed(baseline))
    both = ([throughput(answers) for answers in zip(*some, strict=True)] for some in groups.values())
    return RelativeSpeeds(
        {name: tuple(some) for name, some in ratios.items()},
        tuple(other / baseline for baseline, other in both if baseline and other),
    )


def median_speeds(record: BenchRecord) -> Speeds:
    """The median speed of every system at every question over all runs."""
    speeds: dict[tuple[str, CaseKey], list[float]] = defaultdict(list)
    for each in record.answers.values():
        if each.tokens_per_second and not each.error:
            speeds[_key_across_runs(each)].append(each.tokens_per_second)
    return {key: float(np.median(some)) for key, some in speeds.items()}


def speed_scale(medians: Speeds, matched: Sequence[Pair]) -> float:
    """The shared baseline's speed over all runs, over its speed in the runs of these answers."""
    ratios = [
        medians[_key_across_runs(baseline)] / baseline.tokens_per_second
        for baseline, _ in matched
        if baseline.tokens_per_second
    ]
    return float(np.median(ratios)) if ratios else 1.0


def _key_across_runs(answer: RecordedAnswer) -> tuple[str, CaseKey]:
    """A system and a case, the same in every run."""
    return answer.system, replace(answer.case, run=0, group=0)
