"""Recorded prompts and outputs as token ids: JSON lines with `cat`, `prompt` and `out`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from forerun.errors import UnreadableTranscripts
from forerun.json_records import numbered_lines
from forerun.types import IntArray

Lines = Literal["all", "odd", "even"]


@dataclass(frozen=True, slots=True, eq=False)
class Transcript:
    """The prompt and output of one request."""

    category: str
    prompt: IntArray
    output: IntArray

    @property
    def tokens(self) -> IntArray:
        """Prompt and output concatenated."""
        return np.concatenate([self.prompt, self.output])


def read_transcripts(file: Path, lines: Lines = "all") -> list[Transcript]:
    """All transcripts of a file, or those on its odd or even lines, counted from 1."""
    found = list(_read(file, lines))
    if not found:
        where = "is empty" if lines == "all" else f"has no transcripts on its {lines} lines"
        raise UnreadableTranscripts(f"{file} {where}: expected one JSON object per line")
    return found


def _read(file: Path, lines: Lines) -> Iterator[Transcript]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableTranscripts(f"cannot read transcripts from {file}: {error}") from error
    for number, line in numbered_lines(text):
        if lines == "all" or number % 2 == (lines == "odd"):
            try:
                row = json.loads(line)
                yield Transcript(str(row["cat"]), _tokens(row["prompt"]), _tokens(row["out"]))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise UnreadableTranscripts(
                    f"line {number} of {file} is not a transcript: expected `cat` and the token ids `prompt`"
                    f" and `out` ({error})"
                ) from error


def _tokens(given: object) -> IntArray:
    """A list of token ids as an array."""
    if not (isinstance(given, list) and all(isinstance(token, int) and token >= 0 for token in given)):
        raise TypeError("token ids are a list of non-negative integers")
    return np.array(given, dtype=np.int64)
