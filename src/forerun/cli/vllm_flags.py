"""Flags of vLLM behind `--`, for commands that start vLLM servers."""

from __future__ import annotations

import typer
from typer.core import TyperCommand


class VllmFlagsCommand(TyperCommand):
    """A command whose arguments behind `--` are flags of vLLM: the function finds them in `context.args`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse what precedes `--`."""
        own, flags = _split(args)
        super().parse_args(ctx, own)
        ctx.args = flags
        return flags

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """The usage, with the flags of vLLM at its end."""
        return [*super().collect_usage_pieces(ctx), "[-- VLLM_FLAGS...]"]


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in args:
        return args, []
    at = args.index("--")
    return args[:at], args[at + 1 :]
