"""Measures predicted outputs: stock vLLM against `forerun serve` without, with, and with a wrong prediction.

    make bench-prediction ARGS="--num-edits 20"

Two kinds of requests. `file in prompt`: rename a parameter of a function; the prediction is the function.
`file not in prompt`: the output of such a request is asked for again without the function, and the prediction
that output with one line changed. One request at a time; each goes to all systems, in random order.
"""

from __future__ import annotations

import json
import random
import re
import signal
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from forerun.bench.provenance import provenance
from forerun.bench.run_facts import PACKAGES
from forerun.bench.served_model import SPEC_DECODE_METRICS, ServedModel, vllm_server_flags
from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.bench.system_names import FORERUN, VLLM
from forerun.bench.systems import System
from forerun.cli.console import report_errors
from forerun.servers.endpoint import Endpoint
from forerun.servers.processes import forerun_command, vllm_command
from forerun.servers.streaming import StreamedAnswer
from forerun.types import SamplingParams

GREEDY: Final = SamplingParams(temperature=0.0)
FILE_IN_PROMPT: Final = "file in prompt"
FILE_NOT_IN_PROMPT: Final = "file not in prompt"
WRONG: Final = "wrong prediction"
LONG: Final = "100 kB of other text"
PREDICTED: Final = "prediction"

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Edit:
    """A request and the text that its output is expected to repeat."""

    name: str
    kind: str
    prompt: str
    prediction: str


def edits(num: int, stock: Endpoint, max_tokens: int) -> Iterator[Edit]:
    """Requests of both kinds; those of the second kind follow from outputs of the stock server."""
    questions = read_suite(CODE_EDITING)[:num]
    for question in questions:
        source = re.findall(r"```python\n(.*?)\n```", question.text, flags=re.DOTALL)[0]
        yield Edit(question.id, FILE_IN_PROMPT, question.text, source)
    for question in questions:
        prompt = f"Write a Python function that does what `{question.id}` of the standard library does."
        output = stock.chat(prompt, GREEDY, max_tokens).text
        lines = output.splitlines(keepends=True)
        lines[len(lines) // 2 : len(lines) // 2 + 1] = ["# a line that the new version does not have\n"]
        yield Edit(question.id, FILE_NOT_IN_PROMPT, prompt, "".join(lines))


def other_text(num_characters: int) -> str:
    """Text of the standard library that has nothing to do with a request."""
    parts = [file.read_text(encoding="utf-8") for file in sorted(Path(json.__file__).parent.glob("*.py"))]
    text = "".join(parts)
    return (text * (1 + num_characters // len(text)))[:num_characters]


def ask(server: Endpoint, prompt: str, max_tokens: int, prediction: str | None) -> StreamedAnswer:
    """One streamed answer."""
    extra = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
    return server.chat(prompt, GREEDY, max_tokens, extra)


def usage(server: Endpoint, prompt: str, max_tokens: int, prediction: str) -> dict[str, int]:
    """The counts that the server reports about a prediction."""
    answer = server.post(
        "/chat/completions",
        {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "prediction": {"type": "content", "content": prediction},
        },
    )
    details: dict[str, int] = answer["usage"]["completion_tokens_details"]
    return details


def systems(served: ServedModel) -> list[System]:
    """Stock vLLM and forerun, with vLLM's default flags; forerun counts draft tokens in its responses."""
    flags = vllm_server_flags(served)
    commands = {
        VLLM: vllm_command(served.path, *flags),
        FORERUN: forerun_command(served.path, *flags, *SPEC_DECODE_METRICS),
    }
    return [System(name, VLLM, served.dtype, command=tuple(commands[name])) for name in (VLLM, FORERUN)]


def measure(each: Edit, stock: Endpoint, ours: Endpoint, max_tokens: int) -> dict[str, Any]:
    """One request on every system, with and without predictions."""
    wrong = other_text(len(each.prediction))
    runs = {
        VLLM: (stock, None),
        FORERUN: (ours, None),
        PREDICTED: (ours, each.prediction),
        WRONG: (ours, wrong),
        LONG: (ours, other_text(100_000)),
    }
    order = random.Random(each.name + each.kind).sample(list(runs), len(runs))  # noqa: S311
    answers = {name: ask(runs[name][0], each.prompt, max_tokens, runs[name][1]) for name in order}
    counts = usage(ours, each.prompt, max_tokens, each.prediction)
    return {
        "name": each.name,
        "kind": each.kind,
        "identical": len({answer.text for answer in answers.values()}) == 1,
        "num_tokens": answers[VLLM].num_tokens,
        "tokens_per_second": {name: answer.tokens_per_second for name, answer in answers.items()},
        "ttft_seconds": {name: answer.times[0] for name, answer in answers.items()},
        "steps": {name: answer.num_steps for name, answer in answers.items()},
        "draft_tokens": {
            name: None if answer.drafted_per_step is None else sum(answer.drafted_per_step)
            for name, answer in answers.items()
        },
        "usage": {key: counts[key] for key in ("accepted_prediction_tokens", "rejected_prediction_tokens")},
    }


RATIOS: Final = ((PREDICTED, VLLM), (FORERUN, VLLM), (PREDICTED, FORERUN), (WRONG, FORERUN), (LONG, FORERUN))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of the ratios of decoding speeds, by kind, with quartiles."""
    found = []
    for kind in (FILE_IN_PROMPT, FILE_NOT_IN_PROMPT):
        for one, other in RATIOS:
            speeds = [row["tokens_per_second"] for row in rows if row["kind"] == kind]
            ratios = [each[one] / each[other] for each in speeds if each[one] and each[other]]
            if len(ratios) > 1:
                low, median, high = statistics.quantiles(ratios, n=4)
                quartiles = [round(low, 3), round(high, 3)]
                row = {"kind": kind, "ratio": f"{one} / {other}", "num": len(ratios)}
                found.append(row | {"median": round(median, 3), "quartiles": quartiles})
    return found


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    num_edits: Annotated[int, typer.Option(min=1, help="Requests of each kind.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=2, help="Maximum output tokens.")] = 256,
    dtype: Annotated[str, typer.Option(help="dtype of both servers.")] = "float32",
    record: Annotated[Path, typer.Option(help="The record.")] = ROOT / "docs" / "records" / "prediction.json",
) -> None:
    """Measure on an otherwise idle machine; 20 edits are about 260 requests, one at a time."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True)
    with report_errors(), ExitStack() as stack:
        served = ServedModel(model, dtype)
        ends = []
        for system in systems(served):
            console.print(f"starting {system.name}", style="dim")
            log = record.with_name(f"{record.stem}.{system.name}.log")
            url = stack.enter_context(system.start(log, served.startup_timeout)).url
            ends.append(stack.enter_context(closing(Endpoint(url))))
        stock, ours = ends
        for end in ends:
            for _ in range(2):
                end.chat("Count to twenty.", GREEDY, 64)
        rows = []
        for each in edits(num_edits, stock, max_tokens):
            rows.append(measure(each, stock, ours, max_tokens))
            speeds = {name: round(value or 0, 1) for name, value in rows[-1]["tokens_per_second"].items()}
            console.print(f"{each.kind}: {each.name}: {speeds}", highlight=False)
    result = {
        **provenance(f"make bench-prediction ARGS='--num-edits {num_edits}'", PACKAGES),
        "settings": {"model": model.name, "dtype": dtype, "max_tokens": max_tokens},
        "identical": f"{sum(row['identical'] for row in rows)}/{len(rows)}",
        "summary": summary(rows),
        "edits": rows,
    }
    record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in result["summary"]:
        console.print(line, highlight=False)
    console.print(f"identical: {result['identical']}")


if __name__ == "__main__":
    typer.run(main)
