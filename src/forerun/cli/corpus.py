"""`forerun corpus`: text to guess from."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.console import told

corpus = typer.Typer(help="Build files of text to guess from.", no_args_is_help=True)


@corpus.callback()
def main() -> None:
    """Build files of text to guess from."""


@corpus.command()
def build(
    files: Annotated[
        list[Path], typer.Argument(help="Text files; of .jsonl files, the `text` of every line.")
    ],
    tokenizer: Annotated[
        str, typer.Option(help="The model to guess for: its directory, its tokenizer.json or its name.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
) -> None:
    """Index text so that every process of a host can guess from it.

    The file is mapped into memory and shared. It belongs to one tokenizer; servers refuse it for another.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from forerun.drafters import corpus_builder
    from forerun.drafters.documents import load_tokenizer, read_documents, vocabulary_of

    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with told(), Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        loaded = load_tokenizer(tokenizer)
        total = sum(file.stat().st_size for file in files if file.exists())
        task = progress.add_task("reading", total=total)
        num_tokens = corpus_builder.build(
            read_documents(files, loaded, lambda done: progress.update(task, completed=done)),
            output,
            vocabulary=vocabulary_of(loaded),
            tokenizer=tokenizer.rstrip("/").split("/")[-1],
            progress=lambda stage: progress.update(task, description=stage, total=None),
        )
    size = output.stat().st_size
    typer.echo(
        f"{output}: {num_tokens:,} tokens of {len(files)} files, {size / 1e6:,.1f} MB"
        f" ({size / num_tokens:.1f} bytes a token), in {time.perf_counter() - began:.1f} s"
    )


@corpus.command()
def show(
    file: Annotated[Path, typer.Argument(help="A corpus.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Say what a corpus holds, and read all of it to see that it is whole."""
    from forerun.drafters.corpus import Corpus

    with told():
        opened = Corpus(file)
        opened.verify()
    facts = {key: opened.header[key] for key in ("num_tokens", "tokenizer", "vocabulary", "size")}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        typer.echo(
            f"{facts['num_tokens']:,} tokens of the tokenizer {facts['tokenizer']}, {facts['size']:,} bytes"
        )
