"""Results from a record: speeds as ratios to the baseline in the same run, and noise-free counts.

A speedup is the median, over a category's questions, of a system's decoding speed over its baseline's on the
same question; the overall one is the geometric mean over categories. Confidence intervals are bootstrapped
by resampling questions within categories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.bench.answer_metrics import (
    Pair,
    are_timed,
    decoding_speed,
    end_to_end_speed,
    inter_token_latencies,
    speedup_limit,
    survival,
    throughput,
)
from forerun.bench.output_check import OutputComparison, compare_outputs, pairs
from forerun.bench.ratios import OVERALL, RatioEstimate, geomean_ratio
from forerun.bench.record import BenchRecord, StepCosts
from forerun.bench.recorded_answer import MAX_STEAL_SHARE, RecordedAnswer
from forerun.bench.shared_baseline import (
    RelativeSpeeds,
    Speeds,
    median_speeds,
    relative_speeds,
    speed_scale,
    with_shared_baseline,
)
from forerun.bench.system_names import VLLM
from forerun.types import FloatArray


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
    medians = median_speeds(record)
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
        if are_timed(baseline, other):
            categories[other.case.category].append((baseline, other))
    reported = record.costs if facts["baseline"] == VLLM else {}
    costs = {run: each for (run, sampled), each in reported.items() if sampled == bool(temperature)}
    with_shared = with_shared_baseline(record, complete)
    scale = speed_scale(medians, with_shared)
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
        throughput(complete) * scale,
        compare_outputs(record, system, temperature, concurrency),
        record.num_expected(system, temperature, concurrency) - len(matched),
        next((why for why in [*reasons, *(each.error for each in answers)] if why), ""),
        num_disturbed=sum(each.steal_share > MAX_STEAL_SHARE for each in complete),
        relative=relative_speeds(with_shared),
        itls=tuple(gap for each in complete for gap in inter_token_latencies(each)),
    )


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
        geomean_ratio([_ratios(some, decoding_speed) for some in categories]),
        geomean_ratio([_ratios(some, end_to_end_speed) for some in categories]),
        sum(each.num_later_tokens for each in answers) / num_steps if num_steps else None,
        num_draft_tokens / num_steps if num_steps else None,
        survival(answers),
        (float(np.median(ttfts)), float(np.percentile(ttfts, 99))),
        (p50, p90, p99),
        geomean_ratio(limits) if all(each.size for each in limits) else None,
    )


def _ratios(some: Sequence[Pair], speed: Callable[[RecordedAnswer], float]) -> FloatArray:
    return np.array([speed(other) / speed(baseline) for baseline, other in some])
