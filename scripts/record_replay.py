"""Records the tokens per step of the lookup drafters on a transcript file, for the tables of the documents.

    python scripts/record_logits.py TRANSCRIPTS
    python scripts/record_replay.py TRANSCRIPTS --other second=FILE --record docs/records/replay.json

docs/records/replay.json comes from 84 greedy outputs of SmolLM2-135M: twelve for each of Spec-Bench's six
categories and for code editing. Several of Spec-Bench's sources do not license redistribution, so the
repository has the figures and not the transcripts. tests/data/replay.jsonl has prompts of the same kinds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forerun.bench.provenance import provenance
from records import Record, write_record

ALL_SOURCES: Final = ("--sources", "suffix,static,recycled,last-logits")
CONFIGURATIONS: Final = {
    "vllm-ngram, K = 4": ("--drafter", "vllm-ngram", "--nodes", "4"),
    "vllm-ngram, K = 8": ("--drafter", "vllm-ngram", "--nodes", "8"),
    "ngram": ("--drafter", "ngram"),
    "suffix, chain of 16": ("--nodes", "16", "--chain"),
    "suffix, tree of 16": ("--nodes", "16"),
    "suffix, tree of 32": ("--nodes", "32"),
    "suffix, tree of 32, earlier outputs": ("--nodes", "32", "--share-outputs"),
    "static table, tree of 16": ("--nodes", "16", "--sources", "suffix,static"),
    "static table, tree of 32": ("--nodes", "32", "--sources", "suffix,static"),
    "all sources, chain of 16": ("--nodes", "16", "--chain", *ALL_SOURCES),
    "all sources, tree of 16": ("--nodes", "16", *ALL_SOURCES),
    "all sources, tree of 32": ("--nodes", "32", *ALL_SOURCES),
    "all sources, tree of 60": ("--nodes", "60", *ALL_SOURCES),
    "all sources and prompts, tree of 16": ("--nodes", "16", *ALL_SOURCES, "--prompt-logits"),
    "all sources and prompts, tree of 32": ("--nodes", "32", *ALL_SOURCES, "--prompt-logits"),
    "all sources and prompts, tree of 60": ("--nodes", "60", *ALL_SOURCES, "--prompt-logits"),
}
PRICE: Final = ("--price", "0.012")
PRICED: Final = ("vllm-ngram, K = 4", "vllm-ngram, K = 8", "suffix, chain of 16", "suffix, tree of 16")


def replay(transcripts: Path, *options: str) -> dict[str, Any]:
    """The report of `forerun replay`."""
    command = [sys.executable, "-m", "forerun", "replay", str(transcripts), *options, "--json"]
    report: dict[str, Any] = json.loads(subprocess.check_output(command))
    return report


def line(name: str, files: dict[str, Path], options: tuple[str, ...], key: str) -> dict[str, Any]:
    """The figures of one configuration, by category: on all and on the even lines of the first file, and on
    the other files.
    """
    found: dict[str, Any] = {"name": name, "options": list(options), "figure": key}
    for lines, file in files.items():
        chosen = lines if lines == "even" else "all"
        categories = replay(file, *options, "--lines", chosen)["categories"]
        found[lines] = {category: figures[key] for category, figures in categories.items()}
    return found


def main(
    transcripts: Annotated[Path, typer.Argument(help="Transcript file (JSON lines).")],
    other: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE: transcripts on which nothing was fitted, for trees and chains of lookups."
        ),
    ] = None,
    record: Record = None,
) -> None:
    """Replay every configuration, without and with a price per draft token."""
    files = {"all": transcripts, "even": transcripts}
    others = {name: Path(file) for name, _, file in (each.partition("=") for each in other or ())}
    found = [
        line(name, {**files, **({} if "ngram" in name else others)}, each, "tokens_per_step")
        for name, each in CONFIGURATIONS.items()
    ]
    found += [line(name, files, (*CONFIGURATIONS[name], *PRICE), "tokens_per_cost") for name in PRICED]
    write_record(
        found, provenance("scripts/record_replay.py", ("forerun", "numpy", "numba"), threads=1), record
    )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
