"""`forerun theory`: the speedup of speculation, from formulas, and as measured on models."""

from __future__ import annotations

import typer

from forerun.cli.theory.formulas import formulas
from forerun.cli.theory.measure import measure

theory = typer.Typer(invoke_without_command=True)
theory.callback()(formulas)
theory.command()(measure)
