"""Read-only text to guess from, built offline, mapped into memory and shared by all processes of a host.

The file holds the text as token ids, and all its places in the order of their contexts, read backwards from
the place. One search for the current context therefore ends between the two places whose contexts are most
like it, and their neighbours on both sides are the next most like it.

    text      token ids, each one higher than it is: 0 parts two documents
    places    every place of the text, sorted by text[place], text[place - 1], ...
    common    how many tokens of context each place shares with the one before it in that order
    guide     the nearest context of every 64th place, and `outline`, that of every 64th of these: a search
              goes down these levels first, because each step through `places` itself would wait for memory
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
from forerun.drafters.matches import AHEAD, BREAK, CORPUS, COUNT, LONGEST, MATCH, PLACE, SOURCE, Ints
from forerun.errors import InvalidCorpus, VocabularyMismatch

MAGIC: Final = b"forerun corpus\n"
VERSION: Final = 1
STRIDE: Final = 64
"""Every so many places there is one in the guide."""

GUIDED: Final = 8
"""How many tokens of context the guide holds."""

_FIXED: Final = len(MAGIC) + 12
"""The length of what comes before the header: the magic, the version, the header's length and checksum."""

Places = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Text = npt.NDArray[np.unsignedinteger[Any]]


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """What identifies a table of tokens; two tokenizers of the same size are not the same tokenizer."""
    table = sorted((number, token) for token, number in vocabulary.items())
    return sha256(json.dumps(table, ensure_ascii=True).encode()).hexdigest()


class Corpus:
    """An opened corpus. Opening reads the header only; pages come in when they are looked at."""

    def __init__(self, file: Path, *, vocabulary: str | None = None) -> None:
        """Open a file; with the fingerprint of a vocabulary, refuse one that was built with another."""
        self.file = file
        try:
            with file.open("rb") as opened:
                self.header = read_header(opened, file)
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InvalidCorpus(f"cannot open the corpus {file}: {error.strerror}") from error
        if vocabulary is not None and self.header["vocabulary"] != vocabulary:
            raise VocabularyMismatch(
                f"{file} was built with the tokenizer {self.header['tokenizer']!r}, whose tokens are not the"
                " model's; build it again with `forerun corpus build --tokenizer` and the model's own"
            )
        self.text = self._section("text")
        self.places = self._section("places")
        self.common = self._section("common")
        self.guide = self._section("guide").reshape(-1, GUIDED)
        self.outline = self._section("outline").reshape(-1, GUIDED)

    def __len__(self) -> int:
        return len(self.text)

    def look_up(self, tail: Ints, sightings: Ints, depth: int) -> int:
        """Note the places whose contexts are most like the tail (newest token first); return how many."""
        return consult(self.text, self.places, self.common, self.guide, self.outline, tail, sightings, depth)

    def verify(self) -> None:
        """Read the whole file and raise if it is not what was written."""
        for name, where in self.header["sections"].items():
            if zlib.crc32(self._section(name).data) != where["checksum"]:
                raise InvalidCorpus(f"the {name} of {self.file} is damaged: copy or build it again")

    def _section(self, name: str) -> npt.NDArray[Any]:
        where = self.header["sections"][name]
        start = self.header["start"] + where["offset"]
        return np.frombuffer(self._map, dtype=where["dtype"], count=where["count"], offset=start)


def pack_header(header: dict[str, Any]) -> bytes:
    """The beginning of a file, filled up to a whole page."""
    text = json.dumps(header).encode()
    fixed = MAGIC + b"".join(
        number.to_bytes(4, "little") for number in (VERSION, len(text), zlib.crc32(text))
    )
    return (fixed + text).ljust(header["start"], b"\0")


def read_header(opened: BinaryIO, file: Path) -> dict[str, Any]:
    """What a file says of itself; raises where it cannot be what it says."""
    fixed = opened.read(_FIXED)
    version, length, checksum = (
        int.from_bytes(fixed[len(MAGIC) + at : len(MAGIC) + at + 4], "little") for at in (0, 4, 8)
    )
    if not fixed.startswith(MAGIC):
        raise InvalidCorpus(f"{file} is not a corpus; make one with `forerun corpus build`")
    if version != VERSION:
        raise InvalidCorpus(
            f"{file} is a corpus of version {version}, and this forerun reads {VERSION}: build it again"
        )
    text = opened.read(length)
    if len(text) < length or zlib.crc32(text) != checksum:
        raise InvalidCorpus(f"the header of {file} is damaged: build it again")
    header: dict[str, Any] = json.loads(text)
    size = opened.seek(0, 2)
    if size != header["size"]:
        raise InvalidCorpus(
            f"{file} has {size:,} bytes of {header['size']:,}: it was cut off or is still being written;"
            " copy or build it again"
        )
    return header


@compiled
def consult(
    text: Text,
    places: Places,
    common: Bytes,
    guide: Text,
    outline: Text,
    tail: Ints,
    sightings: Ints,
    depth: int,
) -> int:
    """Note the places whose contexts are most like the tail, and return how many there were."""
    above, match_above, match_below = _search(text, places, guide, outline, tail)
    below = above - 1
    num = 0
    while num < sightings.shape[0] and (match_below or match_above):
        if match_above >= match_below:
            sightings[num, MATCH], sightings[num, PLACE] = match_above, places[above]
            above += 1
            match_above = min(match_above, common[above]) if above < places.size else 0
        else:
            sightings[num, MATCH], sightings[num, PLACE] = match_below, places[below]
            match_below = min(match_below, common[below]) if below else 0
            below -= 1
        num += 1
    for row in range(num):  # the first tokens first, so that the waits for them overlap
        begin = int(sightings[row, PLACE]) + 1
        sightings[row, AHEAD] = token_at(text, begin) if 0 < begin < text.size else BREAK
    for row in range(num):
        _read_on(text, sightings, row, depth)
    return num


@compiled
def _search(text: Text, places: Places, guide: Text, outline: Text, tail: Ints) -> tuple[int, int, int]:
    """Where the tail belongs among the places, and how much context it shares with it and the one before."""
    row = _last_before(text, places, outline, tail, 0, outline.shape[0], STRIDE * STRIDE) * STRIDE
    row = _last_before(text, places, guide, tail, row, min(row + STRIDE, guide.shape[0]), STRIDE)
    first, last = row * STRIDE, min((row + 1) * STRIDE, places.size)
    before, match = _compare(text, places, guide, row, tail, STRIDE)
    if not before:
        return first, match, 0
    match_behind = -1
    while last - first > 1:
        middle = (first + last) // 2
        more = shared(text, places[middle], tail)
        if _before(text, places[middle], more, tail):
            first, match = middle, more
        else:
            last, match_behind = middle, more
    if match_behind < 0:
        match_behind = shared(text, places[last], tail) if last < places.size else 0
    return last, match_behind, match


@compiled
def _last_before(
    text: Text, places: Places, guide: Text, tail: Ints, first: int, last: int, stride: int
) -> int:
    """The last of some rows of the guide whose context comes before the tail; the first if none does."""
    while last - first > 1:
        middle = (first + last) // 2
        before, _ = _compare(text, places, guide, middle, tail, stride)
        if before:
            first = middle
        else:
            last = middle
    return first


@compiled
def _compare(text: Text, places: Places, guide: Text, row: int, tail: Ints, stride: int) -> tuple[bool, int]:
    """Whether the place of a row comes before the tail, and how much they share; the row mostly knows."""
    match = 0
    while match < GUIDED and int(guide[row, match]) - 1 == tail[match]:
        match += 1
    if match < GUIDED:
        return int(guide[row, match]) - 1 < tail[match], match
    place = places[row * stride]
    match = shared(text, place, tail)
    return _before(text, place, match, tail), match


@compiled
def _before(text: Text, place: int, match: int, tail: Ints) -> bool:
    """Whether a context that shares so much with the tail comes before it in the order of the places."""
    return match < LONGEST and (not match <= place < text.size or token_at(text, place - match) < tail[match])


@compiled
def shared(text: Text, place: int, tail: Ints) -> int:
    """How many tokens of context a place has in common with the tail; none if there is no such place."""
    match = 0
    while match < LONGEST and match <= place < text.size and token_at(text, place - match) == tail[match]:
        match += 1
    return match


@compiled
def token_at(text: Text, place: int) -> int:
    """The token at a place; `BREAK` between two documents."""
    return int(text[place]) - 1


@compiled
def _read_on(text: Text, sightings: Ints, row: int, depth: int) -> None:
    """Copy what follows a place, up to where its document ends."""
    sightings[row, SOURCE], sightings[row, COUNT] = CORPUS, 1
    begin = int(sightings[row, PLACE]) + 1
    over = bool(sightings[row, AHEAD] == BREAK)
    for i in range(1, depth):
        token = BREAK if over or begin + i >= text.size else token_at(text, begin + i)
        over = token == BREAK
        sightings[row, AHEAD + i] = token
