"""Measures load with vLLM's own client, `vllm bench serve`: stock vLLM and `forerun serve` in alternation.

    make bench-stock-load ARGS="--text 'code editing' --temperature 0 --load closed-8,closed-32"

Both servers run at the same time with the same flags, which are vLLM's defaults. The record is continued:
complete cells are skipped, and a killed run goes on after its last complete alternation.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

os.environ.setdefault(
    "VLLM_CPU_KVCACHE_SPACE", "2"
)  # of both servers: 32 long requests take 1.5 GB in float32

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forerun.bench.client_results import ClientResult, read_client_results
from forerun.bench.figures.stock_load import draw_stock_load
from forerun.bench.provenance import provenance
from forerun.bench.run_facts import PACKAGES
from forerun.bench.served_model import ServedModel, cpu_environment, required_flags, vllm_server_flags
from forerun.bench.stock_load import CHAT, CODE, LOADS, TEXTS, ClientLoad, LoadCell, plan_cells
from forerun.bench.stock_load_client import ClientTurn, choose_prompts, client_arguments, write_prompts
from forerun.bench.stock_load_ratios import LoadComparison
from forerun.bench.stock_load_record import SYSTEMS, StockLoadRecord
from forerun.bench.stock_load_run import (
    TurnSettings,
    check_complete,
    measure_alternation,
    missing_alternations,
)
from forerun.bench.stock_load_table import format_ratio
from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.bench.system_names import FORERUN, VLLM
from forerun.bench.systems import System
from forerun.cli.console import report_errors
from forerun.errors import ConfigurationError
from forerun.models.loading import load_tokenizer
from forerun.rendering.plots import write_figure
from forerun.servers.processes import forerun_command, vllm_command

ROOT: Final = Path(__file__).parents[1]
SERVED_NAME: Final = "target"
WARM_UP: Final = ClientLoad("closed", 8)
NUM_WARM_UP: Final = 16
"""Uncounted requests of each text to each server."""

EVERY_LOAD: Final = ",".join(str(load).replace(" ", "-") for load in LOADS)


class LoadClient:
    """Runs `vllm bench serve` against running servers.

    The client runs in this process, because importing it takes both cores ten seconds, and because the `vllm`
    command fails where vLLM was installed from the package vllm-cpu. Its output goes to a log.
    """

    def __init__(self, model: Path, questions: Path, log: Path) -> None:
        from vllm.benchmarks import serve  # noqa: PLC0415
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

        self.urls: dict[str, str] = {}
        self._model, self._log, self._texts = model, log, read_texts(questions)
        self._tokenizer = load_tokenizer(model)
        self._parser = FlexibleArgumentParser(prog="vllm bench serve")
        self._run = serve.main
        serve.add_cli_args(self._parser)

    def __call__(self, system: str, turn: ClientTurn) -> ClientResult:
        """Run the client against a system and read its result file."""
        with (
            tempfile.TemporaryDirectory() as folder,
            self._log.open("a", encoding="utf-8") as log,
            redirect_stdout(log),
        ):
            prompts, result = Path(folder) / "prompts.json", Path(folder) / "result.json"
            if turn.cell.text in self._texts:
                write_prompts(
                    choose_prompts(self._texts[turn.cell.text], turn), self._apply_template, prompts
                )
            server = ["--base-url", self.urls[system], "--served-model-name", SERVED_NAME, "--label", system]
            arguments = client_arguments(turn, self._model, prompts, result)
            self._run(self._parser.parse_args([*arguments, *server]))
            return read_client_results(result)[0]

    def _apply_template(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def systems_of(served: ServedModel) -> list[System]:
    """Stock vLLM and forerun with the same flags."""
    flags = (*vllm_server_flags(served), "--served-model-name", SERVED_NAME)
    commands = {VLLM: vllm_command(served.path, *flags), FORERUN: forerun_command(served.path, *flags)}
    return [System(name, VLLM, served.dtype, command=tuple(commands[name])) for name in SYSTEMS]


def read_texts(questions: Path) -> dict[str, list[str]]:
    """The prompts of chat and code editing; random text is the client's own."""
    chat = [each.text for each in read_suite(str(questions)) if each.category.replace("_", "-") == "mt-bench"]
    if not chat:
        raise ConfigurationError(f"{questions} has no prompts of the category mt-bench")
    return {CHAT: chat, CODE: [each.text for each in read_suite(CODE_EDITING)]}


def parse_num_prompts(given: str) -> dict[ClientLoad, int]:
    """Requests of a turn by load, from `closed-8=16,open-0.8=20`."""
    pairs = [each.partition("=") for each in given.split(",") if each]
    if not all(num.isdigit() and int(num) for _, _, num in pairs):
        raise ConfigurationError(f"got --num-prompts {given!r}, expected for example closed-8=16,open-0.8=20")
    return {ClientLoad.parse(load): int(num) for load, _, num in pairs}


def cell_line(cell: LoadCell, found: LoadComparison) -> str:
    """The line of a finished cell."""
    throughput, itl = (format_ratio(found.ratios.get(name)) for name in ("throughput", "itl_p99"))
    return (
        f"{cell}: throughput {throughput} of stock's {found.stock['throughput']:.1f} tokens/s, p99 ITL {itl},"
        f" {found.num_identical}/{found.num_outputs} identical, {found.num_alternations} alternations"
    )


def warm_up(client: LoadClient, cells: list[LoadCell], max_tokens: int, progress: Progress) -> None:
    """Send uncounted requests of every text to both servers."""
    for dtype, text, temperature in dict.fromkeys(
        (each.dtype, each.text, each.temperature) for each in cells
    ):
        cell = LoadCell(dtype, text, temperature, WARM_UP)
        turn = ClientTurn(cell, NUM_WARM_UP, max_tokens, cell.seed(-1))
        for name in SYSTEMS:
            progress.console.print(f"warming up {name}: {text}", style="dim")
            check_complete(client(name, turn), turn, name)


def by_flags(missing: dict[LoadCell, int]) -> Iterator[tuple[tuple[str, ...], list[LoadCell]]]:
    """The cells by the server flags that they need, which depend on the temperature."""
    for flags, cells in groupby(missing, key=lambda cell: required_flags([cell.temperature])):
        yield flags, list(cells)


def main(  # noqa: PLR0913, PLR0917  (one parameter per option)
    model: Annotated[Path, typer.Option(help="Model directory.")],
    questions: Annotated[
        Path, typer.Option(help="Prompts of chat: the category MT-bench of this file, such as Spec-Bench's.")
    ] = ROOT / "tests" / "data" / "questions.jsonl",
    text: Annotated[str, typer.Option(help="Texts, comma-separated.")] = ",".join(TEXTS),
    temperature: Annotated[str, typer.Option(help="Temperatures, comma-separated.")] = "0,1",
    load: Annotated[str, typer.Option(help="Loads, comma-separated.")] = EVERY_LOAD,
    alternations: Annotated[
        int, typer.Option(min=0, help="Alternations that each cell shall have; 0 measures nothing.")
    ] = 5,
    num_prompts: Annotated[
        str, typer.Option(help="Requests of a turn by load, such as closed-8=16,open-0.8=20.")
    ] = "",
    max_tokens: Annotated[int, typer.Option(min=2, help="Maximum output tokens of a request.")] = 64,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="Attempts at an alternation while steal time is above 5 %.")
    ] = 2,
    dtype: Annotated[str, typer.Option(help="dtype of both servers.")] = "float32",
    anew: Annotated[bool, typer.Option("--replace", help="Measure the selected cells anew.")] = False,
    record: Annotated[Path, typer.Option(help="The record, which is continued.")] = (
        ROOT / "docs" / "records" / "bench-stock-load.json"
    ),
    figure: Annotated[Path | None, typer.Option(help="Draw the whole record to this file.")] = None,
) -> None:
    """Measure on an otherwise idle machine; five alternations of a cell take about ten minutes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
    with report_errors():
        loads = [ClientLoad.parse(each) for each in load.split(",")]
        cells = plan_cells(dtype, text.split(","), [float(each) for each in temperature.split(",")], loads)
        settings = TurnSettings(max_tokens, parse_num_prompts(num_prompts), max_attempts)
        found = StockLoadRecord.read(record) if record.exists() else StockLoadRecord()
        if anew:
            for cell in cells:
                found.drop(cell)
        digest = sha256(questions.read_bytes()).hexdigest()[:16]
        facts = {
            "model": model.name,
            "dtype": dtype,
            "max_tokens": max_tokens,
            "questions": f"{questions.name} {digest}",
            "vllm_environment": cpu_environment(),
            "systems": {},
        }
        missing = missing_alternations(cells, found, alternations)
        for cell in missing:
            found.check_settings(cell, facts)
        if missing:
            command = f'make bench-stock-load ARGS="{" ".join(_arguments())}"'
            found.runs.append({**provenance(command, (*PACKAGES, "aiohttp")), "settings": facts})
            measure(found, missing, settings, ServedModel(model, dtype), questions, record)
        if figure is not None:
            write_figure(partial(draw_stock_load, found), figure)


def _arguments() -> list[str]:
    """The arguments of this process as they are recorded, without the model and without directories."""
    given = sys.argv[1:]
    given = given[2:] if given[:1] == ["--model"] else given
    return [f"'{each}'" if " " in each else Path(each).name if "/" in each else each for each in given]


def measure(
    record: StockLoadRecord,
    missing: dict[LoadCell, int],
    settings: TurnSettings,
    served: ServedModel,
    questions: Path,
    file: Path,
) -> None:
    """Start both servers for each set of flags and measure the missing alternations of its cells."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as progress:
        task = progress.add_task("loading the client", total=sum(missing.values()))
        client = LoadClient(served.path, questions, file.with_name(f"{file.stem}.client.log"))
        for flags, cells in by_flags(missing):
            with ExitStack() as stack:
                for system in systems_of(replace(served, vllm_flags=flags)):
                    progress.update(task, description=f"starting {system.name}")
                    log = file.with_name(f"{file.stem}.{system.name}.log")
                    client.urls[system.name] = stack.enter_context(
                        system.start(log, served.startup_timeout)
                    ).url
                    name = " ".join([system.name, *flags])
                    record.runs[-1]["settings"]["systems"][name] = system.facts()["command"]
                warm_up(client, cells, settings.max_tokens, progress)
                for cell in cells:
                    progress.update(task, description=str(cell))
                    for _ in range(missing[cell]):
                        record.add(cell, measure_alternation(cell, record, client, settings))
                        record.write(file)
                        progress.advance(task)
                    progress.console.print(cell_line(cell, record.compare(cell)))


if __name__ == "__main__":
    typer.run(main)
