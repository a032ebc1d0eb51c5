"""Recorded logits: the likeliest next tokens at every position of a file of transcripts.

A recording is an `.npz` file that `scripts/record_logits.py` writes. It also has rows of the model's static
table, at least for the tokens of the transcripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from forerun.drafters.static_table import StaticTable
from forerun.errors import UnreadableTranscripts
from forerun.types import Float32Array, IntArray, TopTokens
from forerun.types.top_tokens import Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLogits:
    """The rows of all transcripts, and the static table as far as it was recorded.

    Row i of a transcript has the likeliest tokens after its token i, prompt included. `offsets` has the first
    row of every transcript and the end of the last; `static_rows` are the recorded tokens of the table.
    """

    offsets: IntArray
    tokens: Int32Array
    probs: Float32Array
    static_rows: Int32Array
    static_table: StaticTable

    @classmethod
    def read(cls, file: Path) -> RecordedLogits:
        """Read a recording; raises `UnreadableTranscripts` if the file is none."""
        try:
            with np.load(file) as arrays:
                rows = arrays["static_rows"].astype(np.int32)
                table = StaticTable(int(arrays["vocab_size"]))
                table.successors[rows] = arrays["static_successors"]
                table.codes[rows] = arrays["static_codes"]
                return cls(
                    arrays["offsets"].astype(np.int64),
                    arrays["tokens"].astype(np.int32),
                    arrays["probs"].astype(np.float32),
                    rows,
                    table,
                )
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise UnreadableTranscripts(f"cannot read recorded logits from {file}: {error}") from error

    def write(self, file: Path) -> None:
        """Write the recording, compressed."""
        vocab_size = len(self.static_table.successors)
        id_type = np.uint16 if vocab_size <= 1 << 16 else np.int32
        np.savez_compressed(
            file,
            offsets=self.offsets,
            tokens=self.tokens.astype(id_type),
            probs=self.probs.astype(np.float16),
            vocab_size=vocab_size,
            static_rows=self.static_rows.astype(id_type),
            static_successors=self.static_table.successors[self.static_rows].astype(id_type),
            static_codes=self.static_table.codes[self.static_rows],
        )

    def top_tokens(self, index: int, tokens: IntArray) -> TopTokens:
        """The rows of the transcript with this number, counted from 0, which has these tokens."""
        first, end = self.offsets[index : index + 2].tolist() if index + 1 < len(self.offsets) else (0, 0)
        if end - first != len(tokens):
            raise UnreadableTranscripts(
                f"the recorded logits have {end - first} rows for transcript {index + 1}, which has"
                f" {len(tokens)} tokens: record them again for this file"
            )
        rows = slice(first, end)
        contexts = np.empty((len(tokens), 2), dtype=np.int32)
        contexts[:, 1] = tokens
        contexts[:1, 0], contexts[1:, 0] = -1, tokens[:-1]
        return TopTokens(contexts, self.tokens[rows], self.probs[rows])
