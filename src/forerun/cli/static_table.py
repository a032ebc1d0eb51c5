"""`forerun static-table`: the likeliest next tokens after every token of a model's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from forerun.cli.console import progress_bar, progress_lines, report_errors

SAVE_EVERY_ROWS: Final = 4096


def static_table(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory of the model, or its name.")],
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32; the checkpoint's own if left out.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU if there is one, if left out.")
    ] = None,
    background: Annotated[
        bool,
        typer.Option(
            "--background",
            help="As a child of a server: one thread, only idle CPU time, and at most as long as the parent"
            " process lives.",
        ),
    ] = False,
) -> None:
    """Build the static table of a model, with which drafts of open-ended text get longer.

    One pass over the vocabulary: about two minutes for a model of 135M parameters on two cores. An
    interrupted build continues where it ended. The table is kept in the cache directory, and every engine
    that serves the model uses it, running servers included. `forerun serve` builds a missing table in the
    background if it runs on a CPU.

    Example: forerun static-table MODEL
    """
    with report_errors():
        checkpoint = _yield_to_others() if background else lambda: None
        from forerun.drafters.static_table import StaticTable
        from forerun.drafters.static_table_cache import partial_path, table_path
        from forerun.engines.local.static_table_builder import build_static_table, neutral_context
        from forerun.models.loading import load_model, load_tokenizer, resolve_device, resolve_dtype
        from forerun.models.runner import Runner

        loaded = load_model(model, resolve_dtype(dtype), resolve_device(device))
        file = table_path(model)
        if file is None:
            raise typer.BadParameter(f"{model} is neither a directory nor in the hub's cache")
        part = partial_path(file)
        runner = Runner(loaded, num_slots=2, max_length=512)
        found = next((each for each in (file, part) if each.exists()), None)
        table = StaticTable.load(found) if found else StaticTable(runner.vocab_size)
        num_missing = len(table.missing)
        num_saved = 0
        show_progress = progress_lines if background else progress_bar
        with show_progress("static table", num_missing) as progress:

            def record(num_rows: int) -> None:
                nonlocal num_saved
                progress(num_rows)
                checkpoint()
                if num_rows - num_saved >= SAVE_EVERY_ROWS:
                    table.save(part)
                    num_saved = num_rows

            build_static_table(runner, neutral_context(load_tokenizer(model)), table, progress=record)
        table.save(file)
        part.unlink(missing_ok=True)
    typer.echo(f"{num_missing} rows computed; {file}")


def _yield_to_others() -> Callable[[], None]:
    """Take one thread and idle CPU time only; returns a function that ends the process with its parent."""
    import os

    import torch

    torch.set_num_threads(1)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
    parent = os.getppid()

    def checkpoint() -> None:
        if os.getppid() != parent:
            raise typer.Exit(1)

    return checkpoint
