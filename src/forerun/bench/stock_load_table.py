"""Load against stock vLLM as rows of a table and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from forerun.bench.ratios import RatioEstimate
from forerun.bench.stock_load import LOADS, RANDOM, TEXTS, LoadCell
from forerun.bench.stock_load_ratios import LoadComparison
from forerun.bench.stock_load_record import StockLoadRecord

MIN_THROUGHPUT: Final = 0.98
"""The lowest acceptable throughput as a share of stock's."""

MAX_ITL: Final = 1.05
"""The highest acceptable p99 ITL as a multiple of stock's, in random text, where there is little to draft."""

COMPARISON_TITLES: Final = (
    "load", "throughput, tokens/s", "ratio", "TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms",
    "ITL p99, ratio", "accepted", "identical output", "alternations",
)  # fmt: skip
"""Titles of `comparison_row`."""

METRIC_NAMES: Final = {
    "throughput": "throughput, tokens/s",
    "ttft_p50": "TTFT p50, ms",
    "ttft_p99": "TTFT p99, ms",
    "itl_p50": "ITL p50, ms",
    "itl_p99": "ITL p99, ms",
}
"""Names of the metrics of `metric_rows`."""

ABSENT: Final = "n/a"


def comparison_row(load: str, found: LoadComparison) -> list[str]:
    """One comparison as cells of a table: values of stock and of the other server, and ratios."""
    latencies = [_both(found, metric, 0) for metric in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")]
    rate = found.acceptance_rate
    return [
        load,
        _both(found, "throughput", 1),
        format_ratio(found.ratios.get("throughput")),
        *latencies,
        format_ratio(found.ratios.get("itl_p99")),
        ABSENT if rate is None else f"{100 * rate:.0f} %",
        f"{found.num_identical}/{found.num_outputs}" if found.num_outputs else ABSENT,
        str(found.num_alternations),
    ]


def metric_rows(found: LoadComparison) -> list[list[str]]:
    """One comparison as a row per metric: its name, both values and the ratio; then the identical outputs."""
    rows = [
        [
            name,
            f"{found.stock[metric]:.1f}",
            f"{found.other[metric]:.1f}",
            format_ratio(found.ratios.get(metric)),
        ]
        for metric, name in METRIC_NAMES.items()
        if metric in found.stock
    ]
    if found.num_outputs:
        rows.append(["identical output", "", f"{found.num_identical}/{found.num_outputs}", ""])
    return rows


def format_ratio(ratio: RatioEstimate | None) -> str:
    """A ratio with its interval, if it has one."""
    if ratio is None:
        return ABSENT
    return f"{ratio.value:.2f}" if math.isinf(ratio.high) else str(ratio)


def sorted_cells(record: StockLoadRecord) -> list[LoadCell]:
    """The cells of a record by dtype, text, temperature and load."""
    known = {load: number for number, load in enumerate(LOADS)}

    def key(cell: LoadCell) -> tuple[str, int, float, int, str, float]:
        load = cell.load
        number = known.get(load, len(known))
        return cell.dtype, TEXTS.index(cell.text), cell.temperature, number, load.kind, load.level

    return sorted(record.cells, key=key)


def markdown(record: StockLoadRecord) -> str:
    """The record as a Markdown table, then a sentence per requirement. Values are `stock / forerun`."""
    cells = sorted_cells(record)
    if not cells:
        return "Not measured yet."
    titles = ["text", "temperature", *COMPARISON_TITLES]
    rows = [titles, ["---", "---:", "---", *["---:"] * (len(titles) - 3)]]
    found = {cell: record.compare(cell) for cell in cells}
    rows += [
        [cell.text, f"{cell.temperature:g}", *comparison_row(str(cell.load), found[cell])] for cell in cells
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    note = "Values are stock / forerun, medians over alternations. Brackets: 95 % confidence interval."
    return "\n".join([table, "", note, "", *(f"- {each}" for each in verdicts(found))])


def verdicts(found: dict[LoadCell, LoadComparison]) -> list[str]:
    """A sentence per requirement: in how many cells it is met, and the cells in which it is not."""
    low = [cell for cell, each in found.items() if each.ratios["throughput"].value < MIN_THROUGHPUT]
    surely_low = [cell for cell in low if found[cell].ratios["throughput"].high < MIN_THROUGHPUT]
    random = [cell for cell in found if cell.text == RANDOM]
    slow = [cell for cell in random if found[cell].ratios["itl_p99"].value > MAX_ITL]
    surely_slow = [cell for cell in slow if found[cell].ratios["itl_p99"].low > MAX_ITL]
    different = [cell for cell, each in found.items() if each.num_identical < each.num_outputs]
    num_identical, num_outputs = (
        sum(getattr(each, name) for each in found.values()) for name in ("num_identical", "num_outputs")
    )
    sentences = [_verdict(f"Throughput at least {MIN_THROUGHPUT} of stock's", low, surely_low, len(found))]
    if random:
        claim = f"p99 ITL at most {MAX_ITL} of stock's in random text"
        sentences.append(_verdict(claim, slow, surely_slow, len(random)))
    where = f"; different in {_names(different)}" if different else ""
    return [*sentences, f"Identical output: {num_identical} of {num_outputs}{where}."]


def _verdict(claim: str, failed: Sequence[LoadCell], surely: Sequence[LoadCell], num: int) -> str:
    text = f"{claim}: {num - len(failed)} of {num} cells."
    if failed:
        excluded = _names(surely) if surely else "no cell"
        text += f" Not in {_names(failed)}; the interval excludes it in {excluded}."
    return text


def _names(cells: Sequence[LoadCell]) -> str:
    return "; ".join(f"{each.text}, temperature {each.temperature:g}, {each.load}" for each in cells)


def _both(found: LoadComparison, metric: str, digits: int) -> str:
    if metric not in found.stock:
        return ABSENT
    return f"{found.stock[metric]:.{digits}f} / {found.other[metric]:.{digits}f}"
