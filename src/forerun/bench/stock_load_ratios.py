"""One server against another at the same load, from alternating runs of vLLM's client.

Each run is divided by the stock server's run of the same alternation, so that drift of the machine's speed
between alternations cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.stats import t as student_t

from forerun.bench.client_results import ClientResult
from forerun.bench.ratios import RatioEstimate

METRICS: Final = ("throughput", "ttft_p50", "ttft_p99", "tpot_p50", "itl_p50", "itl_p99", "e2el_p50")
"""Compared attributes of `ClientResult`."""

ResultPair = tuple[ClientResult, ClientResult]
"""Results of the stock server and of the other one, from one alternation."""


@dataclass(frozen=True, slots=True)
class LoadComparison:
    """Medians over alternations by metric, ratios to stock, and identical outputs.

    A metric that a result lacks is absent. `num_outputs` counts the outputs that could be compared.
    """

    num_alternations: int
    stock: dict[str, float]
    other: dict[str, float]
    ratios: dict[str, RatioEstimate]
    num_identical: int
    num_outputs: int
    acceptance_rate: float | None

    def to_row(self) -> dict[str, Any]:
        """The comparison as JSON values; an unbounded interval is null."""
        return {
            "alternations": self.num_alternations,
            "stock": self.stock,
            "other": self.other,
            "ratios": {name: _ratio_row(ratio) for name, ratio in self.ratios.items()},
            "num_identical": self.num_identical,
            "num_outputs": self.num_outputs,
            "acceptance_rate": self.acceptance_rate,
        }


def compare_results(pairs: Sequence[ResultPair]) -> LoadComparison:
    """Compare the results of both servers; there is at least one pair."""
    stock, other, ratios = {}, {}, {}
    for metric in METRICS:
        values = [(getattr(before, metric), getattr(after, metric)) for before, after in pairs]
        if any(None in both for both in values):
            continue
        both = np.array(values, dtype=float)
        stock[metric], other[metric] = (float(each) for each in np.median(both, axis=0))
        if (both > 0).all():
            ratios[metric] = geometric_mean(both[:, 1] / both[:, 0])
    outputs = [one for pair in pairs for one in _matched_outputs(*pair)]
    num_drafts = sum(after.num_draft_tokens for _, after in pairs)
    num_accepted = sum(after.num_accepted_tokens for _, after in pairs)
    return LoadComparison(
        len(pairs), stock, other, ratios, sum(one == two for one, two in outputs), len(outputs),
        num_accepted / num_drafts if num_drafts else None,
    )  # fmt: skip


def geometric_mean(ratios: Sequence[float] | np.ndarray[Any, Any]) -> RatioEstimate:
    """The geometric mean with Student's 95 % interval of the logarithms; one ratio has no interval."""
    logs = np.log(np.asarray(ratios, dtype=float))
    mean = float(logs.mean())
    if logs.size < 2:
        return RatioEstimate(math.exp(mean), 0.0, math.inf)
    margin = float(student_t.ppf(0.975, logs.size - 1) * logs.std(ddof=1) / math.sqrt(logs.size))
    return RatioEstimate(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))


def _matched_outputs(stock: ClientResult, other: ClientResult) -> list[tuple[str, str]]:
    """Digests of both outputs of each request; none if a result has no outputs."""
    one, two = stock.output_digests, other.output_digests
    return list(zip(one, two, strict=True)) if one and len(one) == len(two) else []


def _ratio_row(ratio: RatioEstimate) -> dict[str, float | None]:
    bounded = not math.isinf(ratio.high)
    return {
        "value": ratio.value,
        "low": ratio.low if bounded else None,
        "high": ratio.high if bounded else None,
    }
