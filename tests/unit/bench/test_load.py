"""Speed under load, on a simulated machine with a known cost curve and decoding modes with known ratios."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from forerun.bench.load import (
    BASELINE,
    FORERUN,
    LoadRun,
    StepGroup,
    compare,
    fit_costs,
    from_rows,
    to_rows,
)
from forerun.bench.load_table import lines_of, markdown

TURNS = 8


def seconds(rows: int) -> float:
    return 0.02 + 0.001 * rows


def runs(
    mode: str,
    rows: list[int],
    tokens: int,
    *,
    noise: float = 0.05,
    overhead: float = 0.0,
    cell: str = "float32 | chat | 4",
    level: float = 1.0,
    share: float = 1.0,
) -> list[LoadRun]:
    """Turns of steps with these rows, each of which emits `tokens` tokens; each turn has a machine speed."""
    random = np.random.default_rng(len(mode))
    speeds = np.exp(np.random.default_rng(7).normal(0, 0.3, TURNS))
    return [
        LoadRun.from_steps(
            ("float32, greedy", cell, mode, turn),
            [
                (
                    num,
                    share,
                    round(tokens * share),
                    overhead + seconds(num) * speed * level * float(np.exp(random.normal(0, noise))),
                    overhead,
                )
                for num in rows
            ],
        )
        for turn, speed in enumerate(speeds)
    ]


def test_the_curve_is_separated_from_machine_speed_and_the_ratio_has_no_noise() -> None:
    baseline = runs(BASELINE, [4] * 60, 4)
    forerun = runs(FORERUN, [4, 8, 12] * 20, 6)
    curve = fit_costs([*baseline, *forerun])
    for rows in (4, 8, 12):
        assert curve.at(rows) / curve.at(4) == pytest.approx(seconds(rows) / seconds(4), rel=0.02)
    ratio = compare(forerun, baseline, curve)
    right = 1.5 * 60 * seconds(4) / (20 * sum(map(seconds, (4, 8, 12))))
    assert ratio.without_noise == pytest.approx(right, rel=0.01)
    assert ratio.median == pytest.approx(right, rel=0.03)
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.holds


def test_a_disturbed_turn_has_little_weight() -> None:
    """In one turn all steps with more rows take three times as long; then in every turn."""
    baseline, forerun = runs(BASELINE, [4] * 60, 4), runs(FORERUN, [4, 8, 12] * 20, 6)
    right = compare(forerun, baseline, fit_costs([*baseline, *forerun])).without_noise

    def slowed(run: LoadRun) -> LoadRun:
        steps = [replace(each, median=each.median * (3 if each.rows > 4 else 1)) for each in run.steps]
        return replace(run, steps=tuple(steps))

    once = [slowed(forerun[0]), *forerun[1:]]
    assert compare(once, baseline, fit_costs([*baseline, *once])).without_noise == pytest.approx(
        right, rel=0.03
    )
    always = [slowed(run) for run in forerun]
    assert compare(always, baseline, fit_costs([*baseline, *always])).without_noise < 0.6 * right


def test_a_slower_mode_fails_by_both_measures() -> None:
    baseline = runs(BASELINE, [4] * 60, 4)
    slow = runs("slow", [6] * 60, 4)
    ratio = compare(slow, baseline, fit_costs([*baseline, *slow]))
    assert ratio.without_noise < 0.98
    assert ratio.p_below < 0.05
    assert not ratio.holds


def test_cells_that_differ_in_level_share_one_curve() -> None:
    """Row counts of a single cell are priced in proportion to those of both cells."""
    alone = [*runs(BASELINE, [1] * 60, 1, cell="float32 | chat | 1")]
    alone += runs(FORERUN, [1, 4, 8, 12] * 15, 2, cell="float32 | chat | 1")
    loaded = [
        *runs(BASELINE, [4] * 60, 4, level=1.4),
        *runs(FORERUN, [4, 8] * 30, 6, level=1.4),
    ]
    curve = fit_costs([*alone, *loaded])
    for rows in (1, 4, 8, 12):
        assert curve.at(rows) / curve.at(4) == pytest.approx(seconds(rows) / seconds(4), rel=0.03)


def test_overhead_counts_in_the_noise_free_ratio() -> None:
    baseline = runs(BASELINE, [4] * 60, 4)
    forerun = runs(FORERUN, [4] * 60, 4, overhead=0.05 * seconds(4))
    assert compare(forerun, baseline, fit_costs([*baseline, *forerun])).without_noise == pytest.approx(
        1 / 1.05, rel=0.01
    )


def test_the_baseline_is_not_charged_overhead() -> None:
    lean, fat = (runs(BASELINE, [4] * 60, 4, overhead=overhead) for overhead in (0.0, 0.01))
    assert [run.speed for run in fat] == pytest.approx([run.speed for run in lean], rel=1e-4)


def test_filler_requests_do_not_count() -> None:
    """Half of those under mode count: half the tokens, and half the time."""
    whole, half = (runs(FORERUN, [8] * 60, 8, share=share) for share in (1.0, 0.5))
    assert [run.num_tokens * 2 for run in half] == [run.num_tokens for run in whole]
    assert [run.speed for run in half] == pytest.approx([run.speed for run in whole], rel=1e-4)
    baseline = runs(BASELINE, [4] * 60, 4)
    curve = fit_costs([*baseline, *whole])
    noiseless = [compare(some, baseline, curve).without_noise for some in (whole, half)]
    assert noiseless[0] == pytest.approx(noiseless[1])


def test_the_curve_is_non_decreasing() -> None:
    baseline = runs(BASELINE, [4] * 40 + [5], 4, noise=0.4)
    curve = fit_costs(baseline)
    assert list(curve.seconds) == sorted(curve.seconds)


def test_lines_are_reproduced_from_a_record() -> None:
    found = [*runs(BASELINE, [4] * 60, 4), *runs(FORERUN, [8] * 60, 7), *runs("fixed 2", [12] * 60, 7)]
    found += runs("fixed 4", [20] * 60, 7)
    kept = from_rows(json.loads(json.dumps(to_rows(found))))
    assert kept == found
    (line,) = lines_of(kept)
    assert line["best"] == "fixed 2"
    assert line["holds"]
    assert line["over_best"]["without_noise"] == pytest.approx(seconds(12) / seconds(8), rel=0.02)
    assert line["tokens_per_step"] == 7 / 4
    assert line["steps"] == {FORERUN: 60 * TURNS, BASELINE: 60 * TURNS}
    assert markdown([line]).splitlines()[2].startswith("| float32 | chat | 4 | 1.")


def test_runs_with_old_names_are_read() -> None:
    (found,) = from_rows(
        [
            {
                "family": "x, drawn",
                "cell": "x",
                "way": "plain",
                "turn": 1,
                "steps": [[4, 1.0, 4, 0.1, 0.1, 0.0]],
            }
        ]
    )
    assert (found.family, found.mode, found.turn) == ("x, sampled", BASELINE, 1)
    assert found.steps == (StepGroup(4, 1.0, 4, 0.1, 0.1, 0.0),)
