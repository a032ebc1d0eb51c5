"""Results from records: known ratios, limits and validity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.bench.answer_metrics import inter_token_latencies, speedup_limit
from forerun.bench.ratios import OVERALL, geomean_ratio
from forerun.bench.record import BenchRecord
from forerun.bench.summary import summarise
from unit.bench.made_records import FACTS, answer, case, sabotaged


def test_a_speedup_compares_answers_to_the_same_question(record: BenchRecord) -> None:
    ours = next(each for each in summarise(record) if each.system == "forerun")
    assert ours.overall is not None
    for name in ("chat", "code", OVERALL):
        assert ours.by_category[name].speedup.value == pytest.approx(4 / 1.25)
    assert ours.overall.tokens_per_step == pytest.approx(4.0)
    assert ours.overall.draft_tokens_per_step == pytest.approx(3.0)
    assert ours.overall.survival == (1.0, 1.0, 1.0)
    assert ours.is_valid
    baseline = next(each for each in summarise(record) if each.system == "vllm")
    assert baseline.overall is not None
    assert baseline.overall.speedup.value == 1.0


def test_the_limit_is_theorem_38_with_the_cost_of_steps_with_more_rows(record: BenchRecord) -> None:
    ours = next(each for each in summarise(record) if each.system == "forerun").overall
    assert ours is not None
    cost = np.interp(4, [1, 8], [0.02, 0.025])
    assert ours.limit is not None
    assert ours.limit.value == pytest.approx(4 * 0.02 / cost)
    assert speedup_limit(answer("x", case(0), pause=1.0), None) is None


def test_the_limit_is_a_median_over_questions_like_the_speedup(record: BenchRecord) -> None:
    """One category has a high speedup, one has none. Without wasted rows the speedup equals the limit."""
    record.costs = {(0, False): {1: 0.02, 64: 0.02}}
    for number in range(4):
        per_event = 8 if number % 2 else 1
        record.add(answer("vllm", case(number), pause=0.02))
        record.add(answer("forerun", case(number), pause=0.02, per_event=per_event))
    ours = next(each for each in summarise(record) if each.system == "forerun").overall
    assert ours is not None
    assert ours.speedup.value == pytest.approx(8**0.5)
    assert ours.limit is not None
    assert ours.limit.value == pytest.approx(ours.speedup.value)
    assert ours.limit.low <= ours.limit.value <= ours.limit.high


def test_intervals_contain_the_ratio_and_grow_with_the_spread() -> None:
    random = np.random.default_rng(3)
    tight, loose = (np.exp(random.normal(np.log(2), spread, 40)) for spread in (0.01, 0.3))
    near, far = geomean_ratio([tight]), geomean_ratio([loose])
    assert near.low <= near.value <= near.high
    assert far.high - far.low > 5 * (near.high - near.low)


def test_speeds_of_a_slower_run_are_rescaled_by_the_shared_baseline(record: BenchRecord) -> None:
    """A system that runs with the same baseline has the same speed in either run."""
    alone = next(each for each in summarise(record) if each.system == "forerun").overall
    systems = FACTS["systems"]
    record.runs.append({**FACTS, "systems": {"vllm": systems["vllm"], "later": systems["forerun"]}})
    for number in range(4):
        at, slowdown = replace(case(number), run=1), 1.0 + 0.5 * number
        record.add(answer("vllm", at, pause=3 * 0.02 * slowdown))
        record.add(answer("later", at, pause=3 * 0.025 * slowdown, per_event=4))
    both = {each.system: each for each in summarise(record)}
    earlier, later = both["forerun"].overall, both["later"].overall
    assert alone is not None
    assert earlier is not None
    assert later is not None
    assert later.speed == pytest.approx(earlier.speed)
    assert earlier.speed != pytest.approx(alone.speed)


def test_tokens_of_one_event_have_no_latency_between_them() -> None:
    found = answer("x", case(0), pause=0.5, per_event=2, num=5)
    assert list(inter_token_latencies(found)) == [0.5, 0.0, 0.5, 0.0]


def test_a_system_with_different_output_is_marked_at_every_setting(record: BenchRecord) -> None:
    record = sabotaged(record, "difference")
    record.runs = [FACTS | {"workload": FACTS["workload"] | {"temperatures": [0.0, 1.0]}}]
    for number in range(4):
        record.add(answer("vllm", case(number, 1.0), pause=0.02))
        record.add(answer("forerun", case(number, 1.0), pause=0.02))
    ours = [each for each in summarise(record) if each.system == "forerun"]
    assert [each.temperature for each in ours] == [0.0, 1.0]
    assert not any(each.is_valid for each in ours)


def test_a_missing_answer_of_the_baseline_marks_both_systems(record: BenchRecord) -> None:
    del record.answers[case(3), "vllm"]  # forerun's speed is compared with it
    by_name = {each.system: each for each in summarise(record)}
    assert not by_name["vllm"].is_valid
    assert not by_name["forerun"].is_valid
    assert by_name["llama.cpp"].is_valid
