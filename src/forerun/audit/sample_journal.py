"""The samples file (JSON lines) of an audit, appended as samples arrive, so that the audit can be resumed.

The first line holds the question. Each further line is one batch: the index of its case and the outputs of
both servers. Files written with older keys are still read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from forerun.errors import ConfigurationError
from forerun.json_records import rename_keys
from forerun.servers.completions import Token

_OLD_KEYS: Final = {"tested": "candidate", "plain": "baseline", "tokens": "max_tokens"}
"""Keys of older files, with their present names."""


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Outputs of both servers for one case; `baseline` is empty if the audit has a reference model."""

    case: int
    candidate: list[tuple[Token, ...]]
    baseline: list[tuple[Token, ...]]


class SampleJournal:
    """A file of sample batches of one question; `resume` continues a file written for the same question."""

    def __init__(self, file: Path, question: dict[str, Any], *, resume: bool = False) -> None:
        if not resume:
            check_new(file)
        self.file = file
        self._recorded: list[SampleBatch] = list(_read(file, question)) if resume else []
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.new")
        self._out: TextIO = fresh.open("w", encoding="utf-8")
        self._write({"question": question})
        for batch in self._recorded:  # rewritten, since the last line may be truncated
            self.append(batch)
        fresh.replace(file)

    def recorded_batches(self) -> list[SampleBatch]:
        """The batches that the file held when the audit was resumed."""
        return self._recorded

    def append(self, batch: SampleBatch) -> None:
        """Append a batch and flush it, so that it survives the process."""
        self._write({"case": batch.case, "candidate": batch.candidate, "baseline": batch.baseline})

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._out.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._out.flush()


def check_new(file: Path) -> None:
    """Raise if the file exists: a new audit does not overwrite samples."""
    if file.is_file():
        raise ConfigurationError(
            f"{file} exists already: continue it with --resume {file}, or give another path"
        )


def default_path(audit: str) -> Path:
    """A new samples file under the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "forerun" / "audits" / f"{audit}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.jsonl"


def _read(file: Path, question: dict[str, Any]) -> Iterator[SampleBatch]:
    """The batches of a file written for the same question; a truncated last line is ignored."""
    try:
        head, *lines = file.read_text(encoding="utf-8").splitlines()
        recorded = rename_keys(json.loads(head)["question"], _OLD_KEYS)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{file} is not a samples file that can be resumed: {error}") from error
    expected = json.loads(json.dumps(question))
    if recorded != expected:
        differing = sorted(
            key for key in recorded.keys() | expected if recorded.get(key) != expected.get(key)
        )
        raise ConfigurationError(
            f"{file} holds samples of another audit; these settings differ: {', '.join(differing)}. Repeat"
            " the command that wrote the file, with --resume"
        )
    for line in lines:
        try:
            row = rename_keys(json.loads(line), _OLD_KEYS)
        except ValueError:
            return
        candidate, baseline = ([tuple(output) for output in row[key]] for key in ("candidate", "baseline"))
        yield SampleBatch(row["case"], candidate, baseline)
