"""`forerun`: the commands and their order."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.audit import audit
from forerun.cli.bench import bench
from forerun.cli.corpus import corpus
from forerun.cli.doctor import doctor
from forerun.cli.generate import generate
from forerun.cli.replay import replay
from forerun.cli.serve import serve
from forerun.cli.simulate import simulate
from forerun.cli.theory import theory
from forerun.cli.trace import trace
from forerun.cli.tune import tune

app = typer.Typer(
    help="Lossless speculative decoding: faster, with the same words.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(audit, name="audit")
app.add_typer(bench, name="bench")
app.add_typer(corpus, name="corpus")
app.command()(doctor)
app.command()(generate)
app.command()(replay)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
app.command()(simulate)
app.command()(theory)
app.command()(trace)
app.command()(tune)


def _print_version(wanted: bool) -> None:
    if wanted:
        from forerun import __version__

        typer.echo(f"forerun {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Lossless speculative decoding: faster, with the same words."""
