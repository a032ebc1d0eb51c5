"""Recorded prompts and outputs as token ids: JSON lines with `cat`, `prompt` and `out`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from forerun.bench.recorded_logits import RecordedLogits
from forerun.errors import UnreadableTranscripts
from forerun.json_records import numbered_lines
from forerun.types import IntArray, TopTokens

Lines = Literal["all", "odd", "even"]


@dataclass(frozen=True, slots=True, eq=False)
class Transcript:
    """The prompt and output of one request, and if recorded, the likeliest next tokens at its positions."""

    category: str
    prompt: IntArray
    output: IntArray
    top_tokens: TopTokens | None = None

    @property
    def tokens(self) -> IntArray:
        """Prompt and output concatenated."""
        return np.concatenate([self.prompt, self.output])


def read_transcripts(
    file: Path, lines: Lines = "all", logits: RecordedLogits | None = None
) -> list[Transcript]:
    """All transcripts of a file, or those on its odd or even lines, counted from 1, with recorded logits."""
    found = list(_read(file, lines, logits))
    if not found:
        where = "is empty" if lines == "all" else f"has no transcripts on its {lines} lines"
        raise UnreadableTranscripts(f"{file} {where}: expected one JSON object per line")
    return found


def _read(file: Path, lines: Lines, logits: RecordedLogits | None) -> Iterator[Transcript]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableTranscripts(f"cannot read transcripts from {file}: {error}") from error
    for index, (number, line) in enumerate(numbered_lines(text)):
        if lines == "all" or number % 2 == (lines == "odd"):
            try:
                row = json.loads(line)
                transcript = Transcript(str(row["cat"]), _tokens(row["prompt"]), _tokens(row["out"]))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise UnreadableTranscripts(
                    f"line {number} of {file} is not a transcript: expected `cat` and the token ids `prompt`"
                    f" and `out` ({error})"
                ) from error
            if logits is not None:
                top_tokens = logits.top_tokens(index, transcript.tokens)
                transcript = replace(transcript, top_tokens=top_tokens)
            yield transcript


def _tokens(given: object) -> IntArray:
    """A list of token ids as an array."""
    if not (isinstance(given, list) and all(isinstance(token, int) and token >= 0 for token in given)):
        raise TypeError("token ids are a list of non-negative integers")
    return np.array(given, dtype=np.int64)
