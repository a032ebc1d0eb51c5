"""Throughput of a server against the baseline, by kind of text and concurrency.

The servers run one after the other, so rounds do not alternate: a drift of the machine between the two is not
in the interval. The baseline's second run, where there is one, shows it. Tokens per step and the acceptance
rate come from the server's counters and do not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.bench.load import MIN_RATIO
from forerun.bench.ratios import RatioEstimate, ratio_of_sums
from forerun.selftest.checks import CheckVerdict, SelftestCheck
from forerun.selftest.load_rounds import Cell, CellRun
from forerun.servers.completions import Token
from forerun.types import FloatArray


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell of both servers: throughput of each in tokens/s, and the ratio over rounds.

    `baseline_drift` is the throughput of the baseline's second run over its first, if it ran twice.
    """

    text: str
    concurrency: int
    baseline: float
    forerun: float
    ratio: RatioEstimate
    tokens_per_step: float | None
    acceptance_rate: float | None
    num_identical: int
    num_outputs: int
    baseline_drift: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The cell as JSON values; an unbounded interval is null."""
        values = asdict(self)
        interval = None if math.isinf(self.ratio.high) else [self.ratio.low, self.ratio.high]
        return values | {"ratio": self.ratio.value, "interval": interval}


def compare_load(
    baseline: Mapping[Cell, CellRun],
    forerun: Mapping[Cell, CellRun],
    again: Mapping[Cell, CellRun] | None = None,
) -> list[CellResult]:
    """Compare all cells, with the mean of both runs of the baseline where it ran twice."""
    results = []
    for (text, concurrency), one in baseline.items():
        other = forerun[text, concurrency]
        second = None if again is None else again[text, concurrency]
        runs = [one] if second is None else [one, second]
        seconds = np.array([_seconds(run, one) for run in runs]).mean(axis=0)
        pairs = _output_pairs(one, other)
        results.append(
            CellResult(
                text,
                concurrency,
                float(np.mean([run.tokens_per_second for run in runs])),
                other.tokens_per_second,
                _ratio(seconds, _seconds(other, one)),
                other.tokens_per_step,
                other.acceptance_rate,
                sum(left == right for left, right in pairs),
                len(pairs),
                None if second is None else second.tokens_per_second / one.tokens_per_second,
            )
        )
    return results


def _output_pairs(one: CellRun, other: CellRun) -> list[tuple[tuple[Token, ...], tuple[Token, ...]]]:
    rounds = zip(one.rounds, other.rounds, strict=True)
    return [pair for left, right in rounds for pair in zip(left.outputs, right.outputs, strict=True)]


def _ratio(baseline: FloatArray, forerun: FloatArray) -> RatioEstimate:
    """The ratio of the seconds; a single round has no interval."""
    found = ratio_of_sums(baseline, forerun)
    return found if baseline.size > 1 else RatioEstimate(found.value, 0.0, math.inf)


def _seconds(run: CellRun, baseline: CellRun) -> FloatArray:
    """Seconds of each round for the number of tokens that the baseline made in it."""
    pairs = zip(run.rounds, baseline.rounds, strict=True)
    return np.array([each.seconds_per_token * other.num_tokens for each, other in pairs])


def throughput_check(results: Sequence[CellResult]) -> SelftestCheck:
    """Whether no cell is slower than the baseline by more than 2 %; a single round decides nothing."""
    slow = any(each.ratio.high < MIN_RATIO for each in results)
    unsure = any(each.ratio.value < MIN_RATIO or math.isinf(each.ratio.high) for each in results)
    verdict = CheckVerdict.FAILED if slow else CheckVerdict.UNDECIDED if unsure else CheckVerdict.PASSED
    ratios = [each.ratio.value for each in results]
    rounds = "; one round each" if any(math.isinf(each.ratio.high) for each in results) else ""
    return SelftestCheck(
        "throughput against stock",
        verdict,
        f"{min(ratios):.2f} to {max(ratios):.2f} times the tokens per second of stock{rounds}",
        details={"cells": [each.as_json() for each in results]},
    )


def load_identity_check(results: Sequence[CellResult]) -> SelftestCheck:
    """Whether the outputs of the load are identical. Differences there are counted and not classified."""
    num = sum(each.num_outputs for each in results)
    num_identical = sum(each.num_identical for each in results)
    differs = num_identical < num
    return SelftestCheck(
        "identical output under load",
        CheckVerdict.UNDECIDED if differs else CheckVerdict.PASSED,
        f"{num_identical} of {num} outputs identical"
        + (
            "; the others are not classified (no log-probabilities are requested under load)"
            if differs
            else ""
        ),
        is_identity=True,
        details={"num_outputs": num, "num_identical": num_identical},
    )
