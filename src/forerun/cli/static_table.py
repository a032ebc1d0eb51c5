"""`forerun static-table`: the likeliest next tokens after every token of a model's vocabulary."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.console import progress_bar, report_errors

SAVE_EVERY_ROWS = 4096


def static_table(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory of the model, or its name.")],
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32; the checkpoint's own if left out.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU if there is one, if left out.")
    ] = None,
) -> None:
    """Build the static table of a model, with which drafts of open-ended text get longer.

    One pass over the vocabulary: about two minutes for a model of 135M parameters on two cores. An
    interrupted build continues where it ended. The table is kept in the cache directory, and every engine
    that loads the model from then on uses it.

    Example: forerun static-table MODEL
    """
    with report_errors():
        from forerun.drafters.static_table import StaticTable
        from forerun.drafters.static_table_cache import table_path
        from forerun.engines.local.static_table_builder import build_static_table, neutral_context
        from forerun.models.loading import load_model, load_tokenizer, resolve_device, resolve_dtype
        from forerun.models.runner import Runner

        loaded = load_model(model, resolve_dtype(dtype), resolve_device(device))
        file = table_path(model)
        if file is None:
            raise typer.BadParameter(f"{model} is neither a directory nor in the hub's cache")
        runner = Runner(loaded, num_slots=2, max_length=512)
        table = StaticTable.load(file) if file.exists() else StaticTable(runner.vocab_size)
        num_missing = len(table.missing)
        num_saved = 0
        with progress_bar("static table", num_missing) as progress:

            def record(num_rows: int) -> None:
                nonlocal num_saved
                progress(num_rows)
                if num_rows - num_saved >= SAVE_EVERY_ROWS:
                    table.save(file)
                    num_saved = num_rows

            build_static_table(runner, neutral_context(load_tokenizer(model)), table, progress=record)
        table.save(file)
    typer.echo(f"{num_missing} rows computed; {file}")
