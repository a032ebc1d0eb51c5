"""Samples on disk, written as they come, so that an audit can be interrupted and taken up again.

A line of JSON for the question, then one for each batch: the number of its case and both servers' answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from forerun.errors import ConfigurationError
from forerun.servers.endpoint import Token


@dataclass(frozen=True, slots=True)
class Batch:
    """What was answered in one go."""

    case: int
    tested: list[tuple[Token, ...]]
    plain: list[tuple[Token, ...]]


class Journal:
    """A file of batches that answer one question."""

    def __init__(self, file: Path, question: dict[str, Any], *, resume: bool = False) -> None:
        if not resume:
            check_new(file)
        self.file = file
        self._earlier: list[Batch] = list(_read(file, question)) if resume else []
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.new")
        self._out: TextIO = fresh.open("w", encoding="utf-8")
        self._write({"question": question})
        for batch in self._earlier:  # written anew, since the last line may have been cut off
            self.keep(batch)
        fresh.replace(file)

    def earlier(self) -> list[Batch]:
        """What was there when the audit was taken up again."""
        return self._earlier

    def keep(self, batch: Batch) -> None:
        """Write a batch, to be there even if the process is not there any more."""
        self._write({"case": batch.case, "tested": batch.tested, "plain": batch.plain})

    def close(self) -> None:
        """Done."""
        self._out.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._out.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._out.flush()


def check_new(file: Path) -> None:
    """Raise if there is a file of samples already: a new audit does not overwrite it."""
    if file.is_file():
        raise ConfigurationError(f"{file} exists already: continue it with --resume {file}, or name another")


def default_file(audit: str) -> Path:
    """The file of samples if none is given: a new one under the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "forerun" / "audits" / f"{audit}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.jsonl"


def _read(file: Path, question: dict[str, Any]) -> Iterator[Batch]:
    """The batches of a file, if it was written for the same question; a last line cut off is let go."""
    try:
        head, *lines = file.read_text(encoding="utf-8").splitlines()
        asked = json.loads(head)["question"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{file} holds no samples to go on with: {error}") from error
    wanted = json.loads(json.dumps(question))
    if asked != wanted:
        differing = sorted(key for key in asked.keys() | wanted if asked.get(key) != wanted.get(key))
        raise ConfigurationError(
            f"{file} holds samples of another question; these differ: {', '.join(differing)}"
        )
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            return
        yield Batch(row["case"], [tuple(one) for one in row["tested"]], [tuple(one) for one in row["plain"]])
