"""`forerun bench`: run systems interleaved on the same prompts, and report from the record."""

from __future__ import annotations

import typer

from forerun.cli.bench.compare import compare
from forerun.cli.bench.report import report
from forerun.cli.bench.run import run
from forerun.cli.console import renamed_options
from forerun.cli.vllm_flags import VllmFlagsCommand

bench = typer.Typer(
    help="Benchmark forerun against other systems, interleaved on the same prompts.", no_args_is_help=True
)
bench.command(cls=renamed_options({"--tokens": "--max-tokens"}, VllmFlagsCommand))(run)
bench.command()(report)
bench.command()(compare)
