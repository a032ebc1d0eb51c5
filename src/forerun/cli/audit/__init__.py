"""`forerun audit`: is speculation honest?"""

from __future__ import annotations

import typer

from forerun.cli.audit.exact import exact
from forerun.cli.audit.parity import greedy, seeded
from forerun.cli.audit.sampled import sampled

audit = typer.Typer(
    help="Prove that speculation changes nothing. Exit code 0: no difference found. 1: a difference. 2: no"
    " verdict.",
    no_args_is_help=True,
)
audit.command()(exact)
audit.command()(greedy)
audit.command()(seeded)
audit.command()(sampled)
