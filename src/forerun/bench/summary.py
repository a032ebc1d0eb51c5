"""Results from a record: speeds as ratios to the baseline in the same run, and noise-free counts.

A speedup is the median, over a category's questions, of a system's decoding speed over its baseline's on the
same question; the overall one is the geometric mean over categories. Confidence intervals are bootstrapped
by resampling questions within categories.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from forerun.bench.output_check import OutputComparison, compare_outputs, pairs
from forerun.bench.record import MAX_STEAL_SHARE, BenchRecord, CaseKey, RecordedAnswer, StepCosts
from forerun.bench.replay import MIN_OUTPUT_TOKENS
from forerun.bench.systems import FORERUN, VLLM
from forerun.types import FloatArray

RESAMPLES: Final = 2000
OVERALL: Final = "geo. mean"

Pair = tuple[RecordedAnswer, RecordedAnswer]
"""A baseline's answer and another one to the same case."""

Speeds = dict[tuple[str, CaseKey], float]
"""Tokens per second by system and case."""


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio with its 95 % confidence interval, which is unbounded where the data allow none."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The ratio as reports print it."""
        if math.isinf(self.high):
            return f"{self.value:.2f} (a single measurement: no interval)"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def contains_1(self) -> bool:
        """Whether no difference is shown."""
        return self.low <= 1 <= self.high

    @property
    def significance_note(self) -> str:
        """Text that follows a ratio whose interval contains 1; otherwise empty."""
        return " (no difference shown: the interval contains 1)" if self.contains_1 else ""


@dataclass(frozen=True, slots=True)
class CategoryResult:
    """A system's results in one category or overall.

    `ttft` has p50 and p99 in seconds, `itl` has p50, p90 and p99. `limit` estimates the highest speedup that
    the accepted draft tokens allow. It is computed from measured step costs, so a measured speedup can
    exceed it.
    """

    num: int
    speed: float
    speedup: RatioEstimate
    end_to_end: RatioEstimate
    tokens_per_step: float | None
    draft_tokens_per_step: float | None
    survival: tuple[float, ...]
    ttft: tuple[float, float]
    itl: tuple[float, float, float]
    limit: RatioEstimate | None


@dataclass(frozen=True, slots=True)
class RelativeSpeeds:
    """Speeds over those of forerun's baseline in the same run: decoding speed by category, one ratio per
    question, and throughput, one ratio per group of requests.
    """

    speeds: dict[str, tuple[float, ...]]
    groups: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SystemResult:
    """A system's results at a temperature and concurrency.

    `num_missing` counts expected answers that the system or its baseline did not give. `differs_elsewhere`
    is set if the output differs from the baseline's at any setting. `num_disturbed` counts answers with too
    much steal time.

    Systems of different runs are compared through forerun's baseline, which takes part in each of these runs:
    `relative` has the speeds over it. Throughput and speed are rescaled by the shared baseline's median over
    all runs, because machine speed drifts between runs.
    """

    system: str
    baseline: str
    precision: str
    temperature: float
    concurrency: int
    by_category: dict[str, CategoryResult]
    throughput: float
    output: OutputComparison
    num_missing: int = 0
    reason: str = ""
    differs_elsewhere: bool = False
    num_disturbed: int = 0
    relative: RelativeSpeeds = field(default_factory=lambda: RelativeSpeeds({}, ()), repr=False)
    itls: tuple[float, ...] = field(default=(), repr=False)

    @property
    def overall(self) -> CategoryResult | None:
        """The result over all categories; none if no answer could be timed."""
        return self.by_category.get(OVERALL)

    @property
    def is_valid(self) -> bool:
        """Whether every answer is there and no output differs, so that the speeds need no mark."""
        complete = not self.num_missing and self.overall is not None
        return complete and self.output.passed and not self.differs_elsewhere


def summarise(record: BenchRecord) -> list[SystemResult]:
    """The results of every system at every temperature and concurrency, in the order of the record."""
    medians = _median_speeds(record)
    results = [
        _result(record, system, temperature, concurrency, medians)
        for temperature, concurrency in record.settings()
        for system in record.systems()
        if record.num_expected(system, temperature, concurrency)
    ]
    differing = {each.system for each in results if not each.output.passed}
    return [replace(each, differs_elsewhere=each.system in differing) for each in results]


def _result(
    record: BenchRecord, system: str, temperature: float, concurrency: int, medians: Speeds
) -> SystemResult:
    facts = record.systems()[system]

    def applies(each: RecordedAnswer) -> bool:
        case = each.case
        return (each.system, case.temperature, case.concurrency) == (system, temperature, concurrency)

    answers = [each for each in record.answers.values() if applies(each)]
    complete = [each for each in answers if not each.error]
    matched = [(each, each) for each in complete]
    if facts["baseline"] != system:
        matched = [(baseline, other) for baseline, other in pairs(record) if applies(other)]
    categories: dict[str, list[Pair]] = defaultdict(list)
    for baseline, other in matched:
        if _is_timed(baseline, other):
            categories[other.case.category].append((baseline, other))
    reported = record.costs if facts["baseline"] == VLLM else {}
    costs = {run: each for (run, sampled), each in reported.items() if sampled == bool(temperature)}
    with_shared = _with_shared_baseline(record, complete)
    scale = _speed_scale(medians, with_shared)
    by_category = {name: _category_result([some], costs, scale) for name, some in categories.items()}
    if by_category:
        by_category[OVERALL] = _category_result(list(categories.values()), costs, scale)
    reasons = [why for (_, each), why in record.excluded.items() if each == system]
    return SystemResult(
        system,
        facts["baseline"],
        facts["precision"],
        temperature,
        concurrency,
        by_category,
        _throughput(complete) * scale,
        compare_outputs(record, system, temperature, concurrency),
        record.num_expected(system, temperature, concurrency) - len(matched),
        next((why for why in [*reasons, *(each.error for each in answers)] if why), ""),
        num_disturbed=sum(each.steal_share > MAX_STEAL_SHARE for each in complete),
        relative=_relative_speeds(with_shared),
        itls=tuple(gap for each in complete for gap in inter_token_latencies(each)),
    )


def _is_timed(baseline: RecordedAnswer, other: RecordedAnswer) -> bool:
    """Whether both answers are long enough to have a decoding speed."""
    long_enough = min(baseline.num_tokens, other.num_tokens) >= MIN_OUTPUT_TOKENS
    return long_enough and bool(baseline.tokens_per_second and other.tokens_per_second)


def _with_shared_baseline(record: BenchRecord, answers: Sequence[RecordedAnswer]) -> list[Pair]:
    """Answers with those of forerun's baseline to the same cases."""
    shared = record.systems().get(FORERUN, {}).get("baseline", "")
    both = [(record.answers.get((each.case, shared)), each) for each in answers]
    return [(baseline, each) for baseline, each in both if baseline is not None and not baseline.error]


def _relative_speeds(matched: Sequence[Pair]) -> RelativeSpeeds:
    """Speeds over the shared baseline's."""
    ratios: dict[str, list[float]] = defaultdict(list)
    groups: dict[tuple[int, int], list[Pair]] = defaultdict(list)
    for baseline, each in matched:
        groups[each.case.run, each.case.group].append((baseline, each))
        if _is_timed(baseline, each):
            ratios[each.case.category].append(_speed(each) / _speed(baseline))
    both = ([_throughput(answers) for answers in zip(*some, strict=True)] for some in groups.values())
    return RelativeSpeeds(
        {name: tuple(some) for name, some in ratios.items()},
        tuple(other / baseline for baseline, other in both if baseline and other),
    )


def _speed(answer: RecordedAnswer) -> float:
    return answer.tokens_per_second or 0.0


def relative_ratios(other: SystemResult, ours: SystemResult) -> dict[str, RatioEstimate]:
    """The speed of one system over another's at the same setting: decoding speed by category at concurrency
    1, throughput above.
    """
    if ours.concurrency > 1:
        both = (other.relative.groups, ours.relative.groups)
        return {OVERALL: _quotient(*map(np.array, both))} if all(both) else {}
    return {
        name: _quotient(np.array(other.relative.speeds[name]), np.array(speeds))
        for name, speeds in ours.relative.speeds.items()
        if name in other.relative.speeds
    }


def _quotient(above: FloatArray, below: FloatArray) -> RatioEstimate:
    """The ratio of two medians, both resampled; with a single value there is no interval."""
    value = float(np.median(above) / np.median(below))
    if min(above.size, below.size) < 2:
        return RatioEstimate(value, 0.0, math.inf)
    generator = np.random.default_rng(0)
    resampled = [np.median(generator.choice(each, (RESAMPLES, each.size)), axis=1) for each in (above, below)]
    low, high = np.percentile(resampled[0] / resampled[1], (2.5, 97.5))
    return RatioEstimate(value, float(low), float(high))


def _median_speeds(record: BenchRecord) -> Speeds:
    """The median speed of every system at every question over all runs."""
    speeds: dict[tuple[str, CaseKey], list[float]] = defaultdict(list)
    for each in record.answers.values():
        if each.tokens_per_second and not each.error:
            speeds[_key_across_runs(each)].append(each.tokens_per_second)
    return {key: float(np.median(some)) for key, some in speeds.items()}


def _speed_scale(medians: Speeds, matched: Sequence[Pair]) -> float:
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


def _category_result(
    categories: Sequence[Sequence[Pair]], costs: dict[int, StepCosts], scale: float
) -> CategoryResult:
    """The result of answers with their baseline's, by category."""
    answers = [other for some in categories for _, other in some]
    steps = [each.num_steps for each in answers]
    num_steps = sum(each for each in steps if each is not None) if None not in steps else 0
    num_draft_tokens = sum(sum(each.drafted_per_step or ()) for each in answers)
    ttfts = [each.times[0] - each.sent for each in answers]
    itls = np.array([gap for each in answers for gap in inter_token_latencies(each)] or [0.0])
    p50, p90, p99 = (float(each) for each in np.percentile(itls, (50, 90, 99)))
    limits = [
        np.array([each for _, other in some if (each := speedup_limit(other, costs.get(other.case.run)))])
        for some in categories
    ]
    return CategoryResult(
        len(answers),
        float(np.median([each.tokens_per_second for each in answers if each.tokens_per_second])) * scale,
        geomean_ratio([_ratios(some, _speed) for some in categories]),
        geomean_ratio([_ratios(some, _end_to_end_speed) for some in categories]),
        sum(each.num_later_tokens for each in answers) / num_steps if num_steps else None,
        num_draft_tokens / num_steps if num_steps else None,
        survival(answers),
        (float(np.median(ttfts)), float(np.percentile(ttfts, 99))),
        (p50, p90, p99),
        geomean_ratio(limits) if all(each.size for each in limits) else None,
    )


def _ratios(some: Sequence[Pair], speed: Callable[[RecordedAnswer], float]) -> FloatArray:
    return np.array([speed(other) / speed(baseline) for baseline, other in some])


def _end_to_end_speed(answer: RecordedAnswer) -> float:
    """Tokens per second from sending the request to the last token."""
    return answer.num_tokens / (answer.times[-1] - answer.sent)


def geomean_of_medians(categories: Sequence[FloatArray]) -> float:
    """The geometric mean of the categories' medians."""
    return float(np.exp(np.mean([np.median(np.log(each)) for each in categories])))


def geomean_ratio(categories: Sequence[FloatArray]) -> RatioEstimate:
    """The geometric mean of the categories' medians with its bootstrapped interval."""
    generator = np.random.default_rng(0)
    logs = [np.log(each) for each in categories]
    resampled = np.mean(
        [np.median(generator.choice(each, (RESAMPLES, each.size)), axis=1) for each in logs], axis=0
    )
    low, high = (float(np.exp(each)) for each in np.percentile(resampled, (2.5, 97.5)))
    return RatioEstimate(geomean_of_medians(categories), low, high)


def ratio_of_sums(above: FloatArray, below: FloatArray) -> RatioEstimate:
    """The sum of one over the sum of the other, with an interval from resampling pairs."""
    picks = np.random.default_rng(0).integers(above.size, size=(RESAMPLES, above.size))
    low, high = np.percentile(above[picks].sum(axis=1) / below[picks].sum(axis=1), (2.5, 97.5))
    return RatioEstimate(float(above.sum() / below.sum()), float(low), float(high))


def inter_token_latencies(answer: RecordedAnswer) -> Iterator[float]:
    """Seconds before each later token; 0 between tokens of the same event."""
    for (before, at), count in zip(pairwise(answer.times), answer.counts[1:], strict=True):
        yield at - before
        yield from (0.0,) * (count - 1)


def survival(answers: Sequence[RecordedAnswer]) -> tuple[float, ...]:
    """The share of steps that accept at least 1, 2, ... draft tokens; empty if servers do not report it."""
    accepted = np.array([each for answer in answers for each in answer.accepted_per_step or ()])
    num_steps = sum(answer.num_steps or 0 for answer in answers)
    if not accepted.size or not accepted.max():
        return ()
    return tuple(float((accepted >= depth).sum() / num_steps) for depth in range(1, int(accepted.max()) + 1))


def speedup_limit(answer: RecordedAnswer, costs: StepCosts | None) -> float | None:
    """The estimated speedup limit of the draft tokens that were accepted (theorem 3.8 for trees).

    It is the cost of as many non-speculative steps over the cost of the steps that were made, by the measured
    cost of a step with that number of rows. It assumes that drafting is free and that concurrent requests
    have drafts of equal length.
    """
    if not costs or answer.drafted_per_step is None or answer.num_steps is None:
        return None
    rows, seconds = zip(*sorted(costs.items()), strict=True)
    concurrency = answer.case.concurrency
    drafted = np.zeros(max(answer.num_steps, 1))
    drafted[: len(answer.drafted_per_step)] = answer.drafted_per_step
    total = np.interp(concurrency * (1 + drafted), rows, seconds).sum()
    return float(answer.num_later_tokens * np.interp(concurrency, rows, seconds) / total)


def _throughput(answers: Sequence[RecordedAnswer]) -> float:
    """Tokens per second over all concurrent requests."""
    groups: dict[tuple[int, int], list[RecordedAnswer]] = defaultdict(list)
    for each in answers:
        groups[each.case.run, each.case.group].append(each)
    seconds = sum(max(each.times[-1] for each in some) for some in groups.values())
    return sum(each.num_tokens for each in answers) / seconds if seconds else 0.0
