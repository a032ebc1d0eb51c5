"""Recorded prompts and outputs, as token ids: one JSON object a line with `cat`, `prompt` and `out`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from forerun.errors import UnreadableTranscripts
from forerun.types import IntArray

Lines = Literal["all", "odd", "even"]


@dataclass(frozen=True, slots=True, eq=False)
class Transcript:
    """One request and what it was answered."""

    category: str
    prompt: IntArray
    output: IntArray

    @property
    def tokens(self) -> IntArray:
        """Prompt and output in one."""
        return np.concatenate([self.prompt, self.output])


def read_transcripts(file: Path, lines: Lines = "all") -> list[Transcript]:
    """All transcripts of a file, or those on its odd or even lines, counted from 1."""
    found = list(_read(file, lines))
    if not found:
        raise UnreadableTranscripts(f"{file} has no transcripts on its {lines} lines")
    return found


def _read(file: Path, lines: Lines) -> Iterator[Transcript]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableTranscripts(f"cannot read transcripts from {file}: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if lines == "all" or number % 2 == (lines == "odd"):
            try:
                row = json.loads(line)
                prompt, output = (np.array(row[key], dtype=np.int64) for key in ("prompt", "out"))
                yield Transcript(str(row["cat"]), prompt, output)
            except (ValueError, TypeError, KeyError) as error:
                raise UnreadableTranscripts(
                    f"line {number} of {file} is no transcript: it needs `cat` and the token ids `prompt` and"
                    f" `out` ({error})"
                ) from error
