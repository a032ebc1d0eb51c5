"""Read-only corpora: built offline, memory-mapped, and shared by all processes of a host.

The file holds the text as token ids, and all its positions sorted by their contexts read backwards. One
binary search for the current context ends between the two positions with the most similar contexts, and their
neighbours on both sides are the next most similar.

    text      token ids plus one; 0 separates documents
    places    every position of the text, sorted by text[position], text[position - 1], ...
    common    number of tokens of context that each position shares with the one before it in that order
    guide     the nearest context of every 64th position, and `outline`, that of every 64th of these: a search
              descends these levels first, because each step through `places` would miss the cache
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from forerun.drafters.corpus_lookup import GUIDE_TOKENS, look_up_corpus
from forerun.drafters.matches import Ints
from forerun.errors import InvalidCorpus, VocabularyMismatch

MAGIC: Final = b"forerun corpus\n"
VERSION: Final = 1
_PREAMBLE_BYTES: Final = len(MAGIC) + 12
"""Bytes before the header: the magic, the version, the header's length and checksum."""


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Identifier of a vocabulary. It covers all tokens, because tokenizers of equal size may differ."""
    table = sorted((number, token) for token, number in vocabulary.items())
    return sha256(json.dumps(table, ensure_ascii=True).encode()).hexdigest()


class Corpus:
    """An open corpus. Opening reads only the header; pages load on access."""

    def __init__(self, file: Path, *, vocabulary: str | None = None) -> None:
        """Open a file; with the fingerprint of a vocabulary, reject corpora built with another."""
        self.file = file
        try:
            with file.open("rb") as opened:
                self.header = read_header(opened, file)
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InvalidCorpus(f"cannot open the corpus {file}: {error.strerror}") from error
        if vocabulary is not None and self.header["vocabulary"] != vocabulary:
            raise VocabularyMismatch(
                f"{file} was built with the tokenizer {self.header['tokenizer']!r}, which is not the model's:"
                " rebuild it with `forerun corpus build --tokenizer` and the model's tokenizer"
            )
        self.text = self._section("text")
        self.positions = self._section("places")
        self.common = self._section("common")
        self.guide = self._section("guide").reshape(-1, GUIDE_TOKENS)
        self.outline = self._section("outline").reshape(-1, GUIDE_TOKENS)

    def __len__(self) -> int:
        return len(self.text)

    def look_up(self, tail: Ints, matches: Ints, depth: int) -> int:
        """Write the positions with the longest matches of the tail (newest token first); returns their
        number.
        """
        return look_up_corpus(
            self.text, self.positions, self.common, self.guide, self.outline, tail, matches, depth
        )

    def verify(self) -> None:
        """Read the whole file and raise if a checksum differs."""
        for name, section in self.header["sections"].items():
            if zlib.crc32(self._section(name).data) != section["checksum"]:
                raise InvalidCorpus(f"the section {name} of {self.file} is damaged: copy or rebuild it")

    def _section(self, name: str) -> npt.NDArray[Any]:
        section = self.header["sections"][name]
        start = self.header["start"] + section["offset"]
        return np.frombuffer(self._map, dtype=section["dtype"], count=section["count"], offset=start)


def pack_header(header: dict[str, Any]) -> bytes:
    """Preamble and header, padded to whole pages."""
    text = json.dumps(header).encode()
    preamble = MAGIC + b"".join(
        number.to_bytes(4, "little") for number in (VERSION, len(text), zlib.crc32(text))
    )
    return (preamble + text).ljust(header["start"], b"\0")


def read_header(opened: BinaryIO, file: Path) -> dict[str, Any]:
    """Read and validate the header; raises `InvalidCorpus` if the file is damaged or incomplete."""
    preamble = opened.read(_PREAMBLE_BYTES)
    version, length, checksum = (
        int.from_bytes(preamble[len(MAGIC) + at : len(MAGIC) + at + 4], "little") for at in (0, 4, 8)
    )
    if not preamble.startswith(MAGIC):
        raise InvalidCorpus(f"{file} is not a corpus; build one with `forerun corpus build`")
    if version != VERSION:
        raise InvalidCorpus(f"{file} has corpus format version {version}, expected {VERSION}: rebuild it")
    text = opened.read(length)
    if len(text) < length or zlib.crc32(text) != checksum:
        raise InvalidCorpus(f"the header of {file} is damaged: rebuild it")
    header: dict[str, Any] = json.loads(text)
    size = opened.seek(0, 2)
    if size != header["size"]:
        raise InvalidCorpus(
            f"{file} has {size:,} of {header['size']:,} bytes: it is truncated or still being written;"
            " copy or rebuild it"
        )
    return header
