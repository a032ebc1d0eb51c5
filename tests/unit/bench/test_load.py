"""Speed under load: a machine with moods whose curve is known, and ways to decode whose ratios are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from forerun.bench.load import OURS, PLAIN, LoadRun, compare, fitted, lines_of, markdown, runs_of, values

TURNS = 8


def seconds(rows: int) -> float:
    return 0.02 + 0.001 * rows


def runs(
    way: str,
    rows: list[int],
    said: int,
    *,
    noise: float = 0.05,
    own: float = 0.0,
    cell: str = "float32 | chat | 4",
    level: float = 1.0,
    share: float = 1.0,
) -> list[LoadRun]:
    """Turns of steps with these rows, each of which says so many tokens; every turn has a mood."""
    random = np.random.default_rng(len(way))
    moods = np.exp(np.random.default_rng(7).normal(0, 0.3, TURNS))
    return [
        LoadRun.of(
            ("float32, greedy", cell, way, turn),
            [
                (
                    num,
                    share,
                    round(said * share),
                    own + seconds(num) * mood * level * float(np.exp(random.normal(0, noise))),
                    own,
                )
                for num in rows
            ],
        )
        for turn, mood in enumerate(moods)
    ]


def test_the_curve_is_told_from_the_moods_and_the_ratio_has_no_noise() -> None:
    plain = runs(PLAIN, [4] * 60, 4)
    ours = runs(OURS, [4, 8, 12] * 20, 6)
    curve = fitted([*plain, *ours])
    for rows in (4, 8, 12):
        assert curve.at(rows) / curve.at(4) == pytest.approx(seconds(rows) / seconds(4), rel=0.02)
    ratio = compare(ours, plain, curve)
    right = 1.5 * 60 * seconds(4) / (20 * sum(map(seconds, (4, 8, 12))))
    assert ratio.without_noise == pytest.approx(right, rel=0.01)
    assert ratio.median == pytest.approx(right, rel=0.03)
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.holds


def test_what_was_disturbed_for_a_while_counts_little() -> None:
    """Of one turn, all wide steps took three times as long: something else ran. Then no turn: it is so."""
    plain, ours = runs(PLAIN, [4] * 60, 4), runs(OURS, [4, 8, 12] * 20, 6)
    right = compare(ours, plain, fitted([*plain, *ours])).without_noise

    def slowed(run: LoadRun) -> LoadRun:
        steps = [replace(each, median=each.median * (3 if each.rows > 4 else 1)) for each in run.steps]
        return replace(run, steps=tuple(steps))

    once = [slowed(ours[0]), *ours[1:]]
    assert compare(once, plain, fitted([*plain, *once])).without_noise == pytest.approx(right, rel=0.03)
    always = [slowed(run) for run in ours]
    assert compare(always, plain, fitted([*plain, *always])).without_noise < 0.6 * right


def test_a_way_that_is_slower_is_found_out_by_both_measures() -> None:
    plain = runs(PLAIN, [4] * 60, 4)
    slow = runs("slow", [6] * 60, 4)
    ratio = compare(slow, plain, fitted([*plain, *slow]))
    assert ratio.without_noise < 0.98
    assert ratio.p_below < 0.05
    assert not ratio.holds


def test_cells_that_differ_in_level_share_one_curve() -> None:
    """Rows that one cell alone has are priced in proportion to those that both have."""
    alone = [*runs(PLAIN, [1] * 60, 1, cell="float32 | chat | 1")]
    alone += runs(OURS, [1, 4, 8, 12] * 15, 2, cell="float32 | chat | 1")
    loaded = [
        *runs(PLAIN, [4] * 60, 4, level=1.4),
        *runs(OURS, [4, 8] * 30, 6, level=1.4),
    ]
    curve = fitted([*alone, *loaded])
    for rows in (1, 4, 8, 12):
        assert curve.at(rows) / curve.at(4) == pytest.approx(seconds(rows) / seconds(4), rel=0.03)


def test_what_we_take_ourselves_counts_without_noise_too() -> None:
    plain = runs(PLAIN, [4] * 60, 4)
    ours = runs(OURS, [4] * 60, 4, own=0.05 * seconds(4))
    assert compare(ours, plain, fitted([*plain, *ours])).without_noise == pytest.approx(1 / 1.05, rel=0.01)


def test_plain_decoding_does_not_pay_for_what_is_ours() -> None:
    lean, fat = (runs(PLAIN, [4] * 60, 4, own=own) for own in (0.0, 0.01))
    assert [run.speed for run in fat] == pytest.approx([run.speed for run in lean], rel=1e-4)


def test_requests_that_only_keep_the_load_up_do_not_count() -> None:
    """Half of those under way count: half the tokens, and half the time."""
    whole, half = (runs(OURS, [8] * 60, 8, share=share) for share in (1.0, 0.5))
    assert [run.said * 2 for run in half] == [run.said for run in whole]
    assert [run.speed for run in half] == pytest.approx([run.speed for run in whole], rel=1e-4)
    plain = runs(PLAIN, [4] * 60, 4)
    curve = fitted([*plain, *whole])
    noiseless = [compare(some, plain, curve).without_noise for some in (whole, half)]
    assert noiseless[0] == pytest.approx(noiseless[1])


def test_the_curve_never_falls() -> None:
    plain = runs(PLAIN, [4] * 40 + [5], 4, noise=0.4)
    curve = fitted(plain)
    assert list(curve.seconds) == sorted(curve.seconds)


def test_lines_are_made_from_what_was_kept_alone() -> None:
    found = [*runs(PLAIN, [4] * 60, 4), *runs(OURS, [8] * 60, 7), *runs("fixed 2", [12] * 60, 7)]
    found += runs("fixed 4", [20] * 60, 7)
    kept = runs_of(json.loads(json.dumps(values(found))))
    assert kept == found
    (line,) = lines_of(kept)
    assert line["best"] == "fixed 2"
    assert line["holds"]
    assert line["over_best"]["without_noise"] == pytest.approx(seconds(12) / seconds(8), rel=0.02)
    assert line["tokens_per_step"] == 7 / 4
    assert line["steps"] == {OURS: 60 * TURNS, PLAIN: 60 * TURNS}
    assert markdown([line]).splitlines()[2].startswith("| float32 | chat | 4 | 1.")
