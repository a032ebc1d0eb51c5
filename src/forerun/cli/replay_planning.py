"""`forerun replay --ahead`: draft lengths planned one step ahead, beside those chosen in the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forerun.bench.batch_replay import BatchStats
    from forerun.bench.transcripts import Transcript
    from forerun.types import Drafter


def planning_report(
    recorded: Sequence[Transcript],
    make_drafter: Callable[[], Drafter],
    nodes: int,
    price: float | None,
    concurrency: int,
) -> dict[str, Any]:
    """Both replays as JSON values, and the ratio of their tokens per step."""
    from forerun.bench.batch_replay import BatchReplay

    replay = BatchReplay(lambda: {"drafter": make_drafter()}, nodes, price, concurrency)
    same_step, ahead = replay.run_sync(recorded), replay.run_ahead(recorded)
    return {
        "same_step": _values(same_step),
        "one_step_ahead": _values(ahead),
        "tokens_per_step_ratio": ahead.tokens_per_step / same_step.tokens_per_step,
    }


def _values(stats: BatchStats) -> dict[str, Any]:
    """Totals as JSON values."""
    return {
        "tokens_per_step": stats.tokens_per_step,
        "draft_rows_per_step": stats.rows_per_step,
        "unfilled_share": stats.unfilled_share,
        "steps_without_rows_share": stats.idle_share,
        "tokens_per_cost": stats.throughput,
        "tokens": stats.num_tokens,
        "request_steps": stats.num_request_steps,
        "steps": stats.num_steps,
        "draft_rows": stats.num_rows,
        "mismatched_drafts": stats.num_mismatches,
    }


def print_planning(report: dict[str, Any]) -> None:
    """Print a table with a row for each way of planning.

    It has the draft rows, the share of them that no drafter filled, and the share of steps without any.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("draft lengths", no_wrap=True)
    for heading in ("tokens/step", "rows/step", "unfilled", "no rows", "tokens/cost"):
        table.add_column(heading, justify="right")
    for name, key in (("same step", "same_step"), ("one step ahead", "one_step_ahead")):
        values = report[key]
        table.add_row(
            name,
            f"{values['tokens_per_step']:.2f}",
            f"{values['draft_rows_per_step']:.1f}",
            f"{values['unfilled_share']:.1%}",
            f"{values['steps_without_rows_share']:.1%}",
            f"{values['tokens_per_cost']:.2f}",
        )
    Console().print(table)
    Console().print(
        f"one step ahead: {report['tokens_per_step_ratio']:.3f} of the tokens per step", highlight=False
    )
