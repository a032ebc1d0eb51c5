"""Ratios of alternating runs, and the table and figure of a record."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun.bench.client_results import ClientResult
from forerun.bench.figures.stock_load import draw_stock_load
from forerun.bench.stock_load import ClientLoad, LoadCell
from forerun.bench.stock_load_ratios import compare_results, geometric_mean
from forerun.bench.stock_load_record import LoadAlternation, StockLoadRecord
from forerun.bench.stock_load_table import COMPARISON_TITLES, comparison_row, markdown, sorted_cells
from forerun.rendering.plots import write_figure

STOCK = ClientResult(
    None, 8, 4, 0, 10.0, 200, 20.0, 0.4,
    ttft_p50=300.0, ttft_p99=900.0, itl_p50=40.0, itl_p99=100.0, output_digests=("a", "b", "c", "d"),
)  # fmt: skip

CHAT = LoadCell("float32", "chat", 0.0, ClientLoad("closed", 8))
RANDOM = LoadCell("float32", "random", 1.0, ClientLoad("open", 0.8))


def forerun(throughput: float, itl_p99: float = 100.0) -> ClientResult:
    return replace(STOCK, throughput=throughput, itl_p99=itl_p99, num_draft_tokens=40, num_accepted_tokens=10)


def made_record(*cells: tuple[LoadCell, list[ClientResult]]) -> StockLoadRecord:
    def alternation(result: ClientResult) -> LoadAlternation:
        both = {"vllm": STOCK, "forerun": result}
        return LoadAlternation(0, 0, tuple(both), both, dict.fromkeys(both, 0.0))

    return StockLoadRecord([], {}, {cell: list(map(alternation, results)) for cell, results in cells})


def test_the_interval_is_students_over_alternations() -> None:
    found = geometric_mean([1.0, math.e])
    assert found.value == pytest.approx(math.exp(0.5))
    margin = 12.7062 * math.sqrt(0.5) / math.sqrt(2)
    assert (found.low, found.high) == pytest.approx(
        (math.exp(0.5 - margin), math.exp(0.5 + margin)), rel=1e-4
    )


def test_about_95_of_100_intervals_hold_the_true_ratio() -> None:
    random = np.random.default_rng(0)
    found = [geometric_mean(np.exp(random.normal(0.1, 0.2, 5))) for _ in range(400)]
    assert 0.92 < np.mean([each.low <= math.exp(0.1) <= each.high for each in found]) < 0.98


def test_a_single_alternation_has_no_interval() -> None:
    found = compare_results([(STOCK, forerun(30.0))])
    assert (found.ratios["throughput"].low, found.ratios["throughput"].high) == (0.0, math.inf)
    assert found.to_row()["ratios"]["throughput"] == {"value": pytest.approx(1.5), "low": None, "high": None}
    assert comparison_row("closed 8", found)[2] == "1.50"


def test_drift_between_alternations_does_not_widen_the_interval() -> None:
    speeds = (1.0, 2.0, 0.5)
    drifting = [
        (replace(STOCK, throughput=20 * each), replace(STOCK, throughput=22 * each)) for each in speeds
    ]
    ratio = compare_results(drifting).ratios["throughput"]
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.1, 1.1, 1.1))


def test_a_metric_that_a_result_lacks_is_absent() -> None:
    found = compare_results([(STOCK, replace(forerun(20.0), ttft_p99=None))])
    assert "ttft_p99" not in found.ratios
    assert "ttft_p50" in found.ratios
    row = dict(zip(COMPARISON_TITLES, comparison_row("closed 8", found), strict=True))
    assert row["TTFT p99, ms"] == "n/a"
    assert row["TTFT p50, ms"] == "300 / 300"


def test_outputs_are_compared_request_by_request() -> None:
    changed = replace(forerun(20.0), output_digests=("a", "c", "b", "d"))
    found = compare_results([(STOCK, forerun(20.0)), (STOCK, changed)])
    assert (found.num_identical, found.num_outputs) == (6, 8)
    without = compare_results([(STOCK, replace(changed, output_digests=()))])
    assert (without.num_identical, without.num_outputs) == (0, 0)
    assert comparison_row("closed 8", without)[-2] == "n/a"


def test_the_acceptance_rate_is_over_all_alternations() -> None:
    other = replace(forerun(20.0), num_draft_tokens=120, num_accepted_tokens=90)
    assert compare_results([(STOCK, forerun(20.0)), (STOCK, other)]).acceptance_rate == 100 / 160
    assert compare_results([(STOCK, STOCK)]).acceptance_rate is None


def test_the_table_has_a_row_per_cell_in_a_fixed_order() -> None:
    other = replace(CHAT, load=ClientLoad("closed", 32))
    record = made_record((RANDOM, [forerun(20.0)]), (other, [forerun(20.0)]), (CHAT, [forerun(30.0)] * 5))
    assert sorted_cells(record) == [CHAT, other, RANDOM]
    lines = markdown(record).splitlines()
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert lines[2] == (
        "| chat | 0 | closed 8 | 20.0 / 30.0 | 1.50 [1.50, 1.50] | 300 / 300 | 900 / 900 | 40 / 40 |"
        " 100 / 100 |"
        " 1.00 [1.00, 1.00] | 25 % | 20/20 | 5 |"
    )
    assert lines[4].startswith("| random | 1 | open 0.8 | 20.0 / 20.0 | 1.00 |")


def test_an_empty_record_has_a_placeholder() -> None:
    assert markdown(StockLoadRecord()) == "Not measured yet."


def verdicts_of(*cells: tuple[LoadCell, list[ClientResult]]) -> list[str]:
    return [line for line in markdown(made_record(*cells)).splitlines() if line.startswith("- ")]


def test_a_met_requirement_names_no_cell() -> None:
    met = verdicts_of(
        (CHAT, [forerun(19.7, itl_p99=300.0)] * 5), (RANDOM, [forerun(20.0, itl_p99=104.0)] * 5)
    )
    assert met == [
        "- Throughput at least 0.98 of stock's: 2 of 2 cells.",
        "- p99 ITL at most 1.05 of stock's in random text: 1 of 1 cells.",
        "- Identical output: 40 of 40.",
    ]


def test_a_missed_requirement_names_its_cells_and_whether_the_interval_excludes_it() -> None:
    changed = replace(forerun(30.0), output_digests=("a", "b", "c", "x"))
    missed = verdicts_of(
        (CHAT, [forerun(19.0)] * 5),
        (replace(CHAT, temperature=1.0), [forerun(15.0), forerun(24.0)]),
        (RANDOM, [replace(changed, itl_p99=120.0)] * 2),
    )
    assert missed[0].endswith(
        "1 of 3 cells. Not in chat, temperature 0, closed 8; chat, temperature 1, closed 8;"
        " the interval excludes it in chat, temperature 0, closed 8."
    )
    assert missed[1].endswith(
        "0 of 1 cells. Not in random, temperature 1, open 0.8; the interval excludes it in"
        " random, temperature 1, open 0.8."
    )
    assert missed[2] == "- Identical output: 34 of 36; different in random, temperature 1, open 0.8."


@pytest.mark.parametrize("num_cells", [1, 3])
def test_the_figure_has_a_panel_per_metric_and_workload_also_for_a_partial_record(
    tmp_path: Path, num_cells: int
) -> None:
    other = replace(CHAT, load=ClientLoad("open", 0.5))
    cells = [(each, [forerun(30.0), forerun(25.0)]) for each in (CHAT, other, RANDOM)][:num_cells]
    record = made_record(*cells)
    figure = draw_stock_load(record)
    columns = 2 if num_cells == 3 else 1
    assert len(figure.axes) == 3 * columns
    throughput, ttft = figure.axes[0], figure.axes[columns]
    loads = ["closed 8", "open 0.5"] if num_cells == 3 else ["closed 8"]
    assert [each.get_text() for each in throughput.get_xticklabels()] == loads
    lines, labels = throughput.get_legend_handles_labels()
    shown = {label: line.get_ydata()[0] for line, label in zip(lines, labels, strict=True)}
    assert shown == {"stock": 20.0, "forerun": 27.5}
    assert len(throughput.lines) == 2 * len(loads), "no line joins a closed load with an open one"
    assert set(ttft.get_legend_handles_labels()[1]) == {
        f"{system} {percentile}" for system in ("stock", "forerun") for percentile in ("p50", "p99")
    }
    file = tmp_path / "load.png"
    write_figure(lambda: draw_stock_load(record), file)
    assert file.stat().st_size > 1000
