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

from forerun.core.jit import compiled
from forerun.drafters.matches import (
    BREAK,
    CONTINUATION,
    CORPUS,
    COUNT,
    MATCH_LENGTH,
    MAX_MATCH,
    POSITION,
    SOURCE,
    Ints,
)
from forerun.errors import InvalidCorpus, VocabularyMismatch

MAGIC: Final = b"forerun corpus\n"
VERSION: Final = 1
STRIDE: Final = 64
"""Positions per row of the guide."""

GUIDE_TOKENS: Final = 8
"""Tokens of context per row of the guide."""

_PREAMBLE_BYTES: Final = len(MAGIC) + 12
"""Bytes before the header: the magic, the version, the header's length and checksum."""

PositionArray = npt.NDArray[np.uint32]
ByteArray = npt.NDArray[np.uint8]
TokenArray = npt.NDArray[np.unsignedinteger[Any]]


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


@compiled
def look_up_corpus(
    text: TokenArray,
    positions: PositionArray,
    common: ByteArray,
    guide: TokenArray,
    outline: TokenArray,
    tail: Ints,
    matches: Ints,
    depth: int,
) -> int:
    """Write the positions with the longest matches of the tail; returns their number."""
    above, match_above, match_below = _search(text, positions, guide, outline, tail)
    below = above - 1
    num = 0
    while num < matches.shape[0] and (match_below or match_above):
        if match_above >= match_below:
            matches[num, MATCH_LENGTH], matches[num, POSITION] = match_above, positions[above]
            above += 1
            match_above = min(match_above, common[above]) if above < positions.size else 0
        else:
            matches[num, MATCH_LENGTH], matches[num, POSITION] = match_below, positions[below]
            match_below = min(match_below, common[below]) if below else 0
            below -= 1
        num += 1
    for row in range(num):  # first tokens first, so that their cache misses overlap
        start = int(matches[row, POSITION]) + 1
        matches[row, CONTINUATION] = token_at(text, start) if 0 < start < text.size else BREAK
    for row in range(num):
        _copy_continuation(text, matches, row, depth)
    return num


@compiled
def _search(
    text: TokenArray, positions: PositionArray, guide: TokenArray, outline: TokenArray, tail: Ints
) -> tuple[int, int, int]:
    """Index at which the tail sorts among the positions, and the context that it shares with that position
    and with the one before.
    """
    row = _last_before(text, positions, outline, tail, 0, outline.shape[0], STRIDE * STRIDE) * STRIDE
    row = _last_before(text, positions, guide, tail, row, min(row + STRIDE, guide.shape[0]), STRIDE)
    first, last = row * STRIDE, min((row + 1) * STRIDE, positions.size)
    before, match = _compare(text, positions, guide, row, tail, STRIDE)
    if not before:
        return first, match, 0
    match_after = -1
    while last - first > 1:
        middle = (first + last) // 2
        shared = shared_context(text, positions[middle], tail)
        if _before(text, positions[middle], shared, tail):
            first, match = middle, shared
        else:
            last, match_after = middle, shared
    if match_after < 0:
        match_after = shared_context(text, positions[last], tail) if last < positions.size else 0
    return last, match_after, match


@compiled
def _last_before(
    text: TokenArray,
    positions: PositionArray,
    guide: TokenArray,
    tail: Ints,
    first: int,
    last: int,
    stride: int,
) -> int:
    """Last row of the guide whose context sorts before the tail; the first row if there is none."""
    while last - first > 1:
        middle = (first + last) // 2
        before, _ = _compare(text, positions, guide, middle, tail, stride)
        if before:
            first = middle
        else:
            last = middle
    return first


@compiled
def _compare(
    text: TokenArray, positions: PositionArray, guide: TokenArray, row: int, tail: Ints, stride: int
) -> tuple[bool, int]:
    """Whether the position of a guide row sorts before the tail, and the context that they share. Usually the
    guide row suffices.
    """
    match = 0
    while match < GUIDE_TOKENS and int(guide[row, match]) - 1 == tail[match]:
        match += 1
    if match < GUIDE_TOKENS:
        return int(guide[row, match]) - 1 < tail[match], match
    position = positions[row * stride]
    match = shared_context(text, position, tail)
    return _before(text, position, match, tail), match


@compiled
def _before(text: TokenArray, position: int, match: int, tail: Ints) -> bool:
    """Whether a context that shares `match` tokens with the tail sorts before it."""
    return match < MAX_MATCH and (
        not match <= position < text.size or token_at(text, position - match) < tail[match]
    )


@compiled
def shared_context(text: TokenArray, position: int, tail: Ints) -> int:
    """Number of tokens of context that a position shares with the tail; 0 for an invalid position."""
    match = 0
    while (
        match < MAX_MATCH
        and match <= position < text.size
        and token_at(text, position - match) == tail[match]
    ):
        match += 1
    return match


@compiled
def token_at(text: TokenArray, position: int) -> int:
    """Token at a position; `BREAK` between two documents."""
    return int(text[position]) - 1


@compiled
def _copy_continuation(text: TokenArray, matches: Ints, row: int, depth: int) -> None:
    """Copy the tokens that follow a position, up to the end of its document."""
    matches[row, SOURCE], matches[row, COUNT] = CORPUS, 1
    start = int(matches[row, POSITION]) + 1
    ended = bool(matches[row, CONTINUATION] == BREAK)
    for i in range(1, depth):
        token = BREAK if ended or start + i >= text.size else token_at(text, start + i)
        ended = token == BREAK
        matches[row, CONTINUATION + i] = token
