"""`forerun`: the commands, in groups."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from forerun.cli.audit import audit
from forerun.cli.bench import bench
from forerun.cli.console import renamed_options
from forerun.cli.corpus import corpus
from forerun.cli.doctor import doctor
from forerun.cli.generate import generate
from forerun.cli.replay import replay
from forerun.cli.selftest import selftest
from forerun.cli.serve import EPILOG, serve
from forerun.cli.simulate import simulate
from forerun.cli.static_table import static_table
from forerun.cli.theory import theory
from forerun.cli.trace import trace
from forerun.cli.tune import tune
from forerun.cli.vllm_flags import VllmFlagsCommand

_SERVE: Final = "Serve and generate"
_CHECK: Final = "Check"
_MEASURE: Final = "Measure and tune"
_THEORY: Final = "Theory and simulation"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}  # flags of `vllm serve`

app.command(rich_help_panel=_SERVE, context_settings=_PASSED_ON, epilog=EPILOG)(serve)
app.command(cls=renamed_options({"--batch": "--concurrency"}), rich_help_panel=_SERVE)(generate)
app.add_typer(corpus, name="corpus", rich_help_panel=_SERVE)
app.command("static-table", rich_help_panel=_SERVE)(static_table)
app.command(rich_help_panel=_CHECK)(doctor)
app.command(cls=VllmFlagsCommand, rich_help_panel=_CHECK)(selftest)
app.add_typer(audit, name="audit", rich_help_panel=_CHECK)
app.command(
    cls=renamed_options(
        {"--num": "--num-prompts", "--tokens": "--max-tokens", "--page": "--report"}, VllmFlagsCommand
    ),
    rich_help_panel=_MEASURE,
)(tune)
app.add_typer(bench, name="bench", rich_help_panel=_MEASURE)
app.command(cls=renamed_options({"--shared": "--share-outputs"}), rich_help_panel=_MEASURE)(replay)
app.command(rich_help_panel=_MEASURE)(trace)
app.add_typer(theory, name="theory", rich_help_panel=_THEORY)
app.command(rich_help_panel=_THEORY)(simulate)


def _print_version(wanted: bool) -> None:
    if wanted:
        from forerun import __version__

        typer.echo(f"forerun {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Lossless speculative decoding for vLLM and transformers.

    In float32, greedy and seeded outputs are identical to non-speculative decoding, token for token, and
    other outputs follow the same distribution. In bfloat16 and float16, unless invariant mode is on,
    near-ties of logits can resolve differently when the number of rows in a forward pass changes, with and
    without speculation.
    """
