"""Draft lengths planned one step ahead, on recorded outputs and on text that cannot be drafted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.bench.batch_replay import BatchReplay, BatchStats
from forerun.bench.transcripts import Transcript, read_transcripts
from forerun.cli.replay_planning import planning_report
from forerun.control import row_forecast
from forerun.drafters.suffix import SuffixDrafter
from forerun.types import Drafter, FloatArray, IntArray

DATA = Path(__file__).parents[2] / "data"


def suffix() -> dict[str, Drafter]:
    return {"suffix": SuffixDrafter(chain=True)}


def replay(price: float | None, concurrency: int, max_draft: int = 16) -> BatchReplay:
    return BatchReplay(suffix, max_draft, price, concurrency)


def random_transcripts() -> list[Transcript]:
    rng = np.random.default_rng(0)
    return [Transcript("random", rng.integers(0, 49152, 200), rng.integers(0, 49152, 100)) for _ in range(16)]


def both(concurrency: int, price: float = 0.012) -> tuple[BatchStats, BatchStats]:
    recorded = read_transcripts(DATA / "replay.jsonl")
    run = replay(price, concurrency)
    return run.run_sync(recorded), run.run_ahead(recorded)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_planning_ahead_keeps_nine_tenths_of_the_tokens_per_step(concurrency: int) -> None:
    same_step, ahead = both(concurrency)
    assert same_step.num_tokens == ahead.num_tokens
    assert ahead.tokens_per_step >= 0.93 * same_step.tokens_per_step
    assert ahead.unfilled_share <= 0.05
    assert ahead.num_mismatches == 0
    assert ahead.throughput > 0.88 * same_step.throughput


def test_planning_without_the_branch_after_a_rejection_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_continuations(
        survivals: FloatArray,
        sizes: IntArray,
        in_flight: IntArray,
        accepted: FloatArray,
        rows: IntArray,
    ) -> FloatArray:
        return acceptance(survivals, sizes, in_flight, np.zeros_like(accepted), rows)

    acceptance = row_forecast.row_acceptance
    monkeypatch.setattr(row_forecast, "row_acceptance", only_continuations)
    same_step, ahead = both(8)
    assert ahead.tokens_per_step < 0.9 * same_step.tokens_per_step


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_batch_that_cannot_be_drafted_plans_no_rows(concurrency: int) -> None:
    stats = replay(0.012, concurrency).run_ahead(random_transcripts())
    assert stats.idle_share >= 0.95


def test_without_a_price_every_row_is_planned() -> None:
    recorded = read_transcripts(DATA / "transcripts.jsonl")
    run = replay(None, 4, max_draft=5)
    ahead = run.run_ahead(recorded)
    assert ahead.rows_per_step == 5
    assert ahead.idle_share == 0
    assert ahead.tokens_per_step >= 0.97 * run.run_sync(recorded).tokens_per_step


def test_tokens_rows_and_steps_are_counted() -> None:
    stats = BatchStats()
    stats.add_request(num_tokens=3, num_rows=4, num_filled=3)
    stats.add_request(num_tokens=1, num_rows=0, num_filled=0)
    stats.add_step(4, 2.0)
    stats.add_step(0, 1.0)
    assert (stats.tokens_per_step, stats.rows_per_step) == (2.0, 2.0)
    assert (stats.unfilled_share, stats.idle_share) == (0.25, 0.5)
    assert stats.throughput == 4 / 3


def test_a_repeated_text_is_emitted_in_full_drafts() -> None:
    text = np.tile(np.arange(10), 30)
    recorded = [Transcript("text", text[:100], text[100:])]
    stats = replay(0.001, 1, max_draft=9).run_ahead(recorded)
    assert stats.num_tokens == 199
    assert stats.tokens_per_step > 6


def test_the_report_has_both_ways_of_planning() -> None:
    recorded = read_transcripts(DATA / "transcripts.jsonl")
    report = planning_report(recorded, lambda: SuffixDrafter(chain=True), 8, 0.012, 4)
    same_step, ahead = report["same_step"], report["one_step_ahead"]
    assert same_step["tokens"] == ahead["tokens"] == sum(len(each.output) - 1 for each in recorded)
    assert report["tokens_per_step_ratio"] == ahead["tokens_per_step"] / same_step["tokens_per_step"]
    assert (same_step["unfilled_share"], ahead["mismatched_drafts"]) == (0, 0)
