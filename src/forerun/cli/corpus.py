"""`forerun corpus`: files of text to draft from."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.console import check_writable, report_errors

corpus = typer.Typer(help="Build and inspect corpora: files of text to draft from.", no_args_is_help=True)


@corpus.callback()
def main() -> None:
    """Build and inspect corpora: files of text to draft from."""


@corpus.command()
def build(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Text files, and directories of them. Of a .jsonl file, the `text` of every line is taken.",
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(help="The model to draft for: its directory, its tokenizer.json or its name on a hub."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
) -> None:
    """Index text, so that every process of a host can draft from it.

    The file is mapped into memory and shared. It belongs to one tokenizer; servers refuse it for another.
    Below a directory, hidden files, version control and empty files are left out. Files that are not UTF-8
    text are skipped with a message.

    Example: forerun corpus build ./docs --tokenizer ./model --output docs.fri
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from forerun.drafters import corpus_builder
    from forerun.drafters.documents import (
        find_text_files,
        list_names,
        load_tokenizer,
        read_documents,
        vocabulary_of,
    )

    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with report_errors(), Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        check_writable(output)
        loaded = load_tokenizer(tokenizer)
        found = find_text_files(files)
        task = progress.add_task("reading", total=sum(file.stat().st_size for file in found.files))
        num_tokens = corpus_builder.build(
            read_documents(found.files, loaded, lambda done: progress.update(task, completed=done)),
            output,
            vocabulary=vocabulary_of(loaded),
            tokenizer=tokenizer.rstrip("/").split("/")[-1],
            progress=lambda stage: progress.update(task, description=stage, total=None),
        )
    if found.skipped:
        num = len(found.skipped)
        typer.echo(f"skipped {num} files that are not UTF-8 text: {list_names(found.skipped)}", err=True)
    size = output.stat().st_size
    typer.echo(
        f"{output}: {num_tokens:,} tokens of {len(found.files)} files, {size / 1e6:,.1f} MB"
        f" ({size / num_tokens:.1f} bytes per token), in {time.perf_counter() - began:.1f} s"
    )


@corpus.command()
def show(
    file: Annotated[Path, typer.Argument(help="A corpus.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a corpus holds, and verify its checksums.

    Example: forerun corpus show docs.fri --json
    """
    from forerun.drafters.corpus import Corpus

    with report_errors():
        opened = Corpus(file)
        opened.verify()
    facts = {key: opened.header[key] for key in ("num_tokens", "tokenizer", "vocabulary", "size")}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        typer.echo(
            f"{facts['num_tokens']:,} tokens of the tokenizer {facts['tokenizer']}, {facts['size']:,} bytes"
        )
