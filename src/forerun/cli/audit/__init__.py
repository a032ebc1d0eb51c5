"""`forerun audit`: tests whether speculation changes the output."""

from __future__ import annotations

import typer

from forerun.cli.audit.exact import exact
from forerun.cli.audit.greedy import greedy
from forerun.cli.audit.options import RENAMED
from forerun.cli.audit.sampled import sampled
from forerun.cli.audit.seeded import seeded
from forerun.cli.audit.suite import suite
from forerun.cli.console import renamed_options

audit = typer.Typer(
    help="Test whether speculation changes a server's output. Exit code 0: no difference found. 1: a"
    " difference. 2: no verdict, also after Ctrl-C.",
    no_args_is_help=True,
)
for command in (exact, suite, greedy, seeded, sampled):
    audit.command(cls=renamed_options(RENAMED))(command)
