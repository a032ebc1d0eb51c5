"""The static table: the likeliest next tokens after every token of the vocabulary, in a neutral context.

It is computed once per model and kept on disk: a header and one row per token. A row that has not been
computed yet has no successors, so an interrupted build continues.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from forerun.drafters.matches import Ints
from forerun.drafters.successors import NUM_SUCCESSORS, ByteArray, encode_successors
from forerun.errors import ConfigurationError
from forerun.types import IntArray, TopTokens

NO_SUCCESSOR: Final = -1

_FORMAT: Final = "forerun static table 1"


class StaticTable:
    """Successors and codes of every token: 40 bytes each."""

    __slots__ = ("codes", "successors")

    def __init__(self, vocab_size: int) -> None:
        self.successors: Ints = np.full((vocab_size, NUM_SUCCESSORS), NO_SUCCESSOR, dtype=np.int32)
        self.codes: ByteArray = np.zeros((vocab_size, NUM_SUCCESSORS), dtype=np.uint8)

    def __len__(self) -> int:
        """The number of tokens of the vocabulary."""
        return len(self.successors)

    @property
    def missing(self) -> IntArray:
        """The tokens whose rows have not been computed."""
        return np.flatnonzero(self.successors[:, 0] == NO_SUCCESSOR)

    def add(self, top_tokens: TopTokens) -> None:
        """Set the rows of the last token of each context."""
        last = top_tokens.contexts[:, -1]
        self.successors[last], self.codes[last] = encode_successors(top_tokens)

    def save(self, file: Path) -> None:
        """Write the table atomically."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            np.savez(part, format=_FORMAT, successors=self.successors, codes=self.codes)
        os.replace(part.name, file)

    def check(self) -> None:
        """Raise `ValueError` unless the arrays have the form that compiled code reads without checks."""
        empty = StaticTable(1)
        for name in ("successors", "codes"):
            found, expected = getattr(self, name), getattr(empty, name)
            is_row = found.shape[1:] == expected.shape[1:] and len(found) == len(self.successors)
            if found.dtype != expected.dtype or not is_row:
                raise ValueError(f"{name} is {found.dtype} of shape {found.shape}")

    @classmethod
    def load(cls, file: Path) -> StaticTable:
        """Read a table; raises `ConfigurationError` if the file is none."""
        try:
            with file.open("rb") as opened, np.load(opened) as arrays:
                if str(arrays["format"]) != _FORMAT:
                    raise ValueError(f"its format is {arrays['format']}")
                table = cls(0)
                table.successors, table.codes = arrays["successors"], arrays["codes"]
            table.check()
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise ConfigurationError(f"{file} is not a static table ({error}); delete it") from error
        return table
