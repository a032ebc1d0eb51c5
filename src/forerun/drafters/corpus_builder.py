"""Building a corpus file from token ids: the sorted places, and what helps to search them.

The suffix array comes from libdivsufsort. It sorts bytes, so that token ids go in as two or four bytes each,
the most significant first, and the places that begin inside one are dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.core.compiled import compiled
from forerun.drafters.corpus import GUIDED, STRIDE, Bytes, Places, Text, pack_header, shared, token_at
from forerun.drafters.sightings import BREAK, LONGEST, Ints
from forerun.errors import InvalidCorpus, MissingExtra

_PAGE = 4096
_MOST_TOKENS = 2**31 - 2


def build(
    documents: Iterable[npt.NDArray[np.integer[Any]]],
    file: Path,
    *,
    vocabulary: str,
    tokenizer: str,
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Write a corpus of these documents and return how many tokens it has.

    The file appears under its name only when it is whole.
    """
    text = _join(documents)
    progress("sorting contexts")
    places = sort_places(text)
    progress("comparing neighbours")
    common = np.empty(len(text), dtype=np.uint8)
    _fill_common(text, places, common)
    guide = np.zeros((-(-len(text) // STRIDE), GUIDED), dtype=text.dtype)
    _fill_guide(text, places, guide)
    progress("writing")
    sections = {
        "text": text,
        "places": places,
        "common": common,
        "guide": guide,
        "outline": guide[::STRIDE].copy(),
    }
    _write(file, sections, {"vocabulary": vocabulary, "tokenizer": tokenizer, "num_tokens": len(text)})
    return len(text)


def _join(documents: Iterable[npt.NDArray[np.integer[Any]]]) -> Text:
    """One text in the narrowest type that holds it, every token one higher, 0 behind every document."""
    parts, top = [], 0
    for document in documents:
        if len(document):
            top = max(top, int(document.max()) + 1)
            kind = np.uint16 if document.max() < 2**16 - 1 else np.uint32
            parts.append(np.append(document + 1, 0).astype(kind))
    num = sum(len(part) for part in parts)
    if not num:
        raise InvalidCorpus("there is no text to build a corpus of: every file is empty")
    if num > _MOST_TOKENS:
        raise InvalidCorpus(f"{num:,} tokens are more than a corpus holds ({_MOST_TOKENS:,}): build several")
    return np.concatenate(parts, dtype=np.uint16 if top < 2**16 else np.uint32)


def sort_places(text: Text) -> Places:
    """All places of a text in the order of their contexts, read backwards."""
    try:
        from pydivsufsort import divsufsort  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("pydivsufsort", "corpus") from error
    used = np.bincount(text) > 0
    kind = np.uint16 if used.sum() <= 2**16 else np.uint32
    ranks = (np.cumsum(used) - 1).astype(kind)
    order: npt.NDArray[np.signedinteger[Any]] = divsufsort(np.ascontiguousarray(ranks[text][::-1]))
    return (len(text) - 1 - order).astype(np.uint32)


@compiled
def _fill_common(text: Text, places: Places, common: Bytes) -> None:
    """How much context every place has in common with the one before it in the order."""
    tail = np.empty(LONGEST, dtype=np.int32)
    common[0] = 0
    for i in range(1, places.size):
        _copy_context(text, places[i], tail)
        common[i] = shared(text, places[i - 1], tail)


@compiled
def _fill_guide(text: Text, places: Places, guide: Text) -> None:
    """The nearest context of every so many places."""
    for row in range(guide.shape[0]):
        place = int(places[row * STRIDE])
        for i in range(min(GUIDED, place + 1)):
            guide[row, i] = text[place - i]


@compiled
def _copy_context(text: Text, place: int, tail: Ints) -> None:
    """The tokens at and before a place, and below any token where the text begins."""
    for i in range(tail.size):
        tail[i] = token_at(text, place - i) if i <= place else BREAK - 1


def _write(file: Path, sections: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> None:
    """Lay the sections out on pages, write everything beside the file, then give it its name."""
    offset = 0
    layout: dict[str, dict[str, Any]] = {}
    for name, section in sections.items():
        layout[name] = {"dtype": section.dtype.str, "count": section.size, "offset": offset}
        offset += -(-section.nbytes // _PAGE) * _PAGE
    header = {**facts, "sections": layout, "start": 0, "size": 0}
    start = -(-(len(json.dumps(header)) + 256) // _PAGE) * _PAGE
    header |= {"start": start, "size": start + offset}
    partial = file.with_name(file.name + ".part")
    with partial.open("wb") as opened:
        opened.write(pack_header(header))
        for name, section in sections.items():
            opened.seek(start + layout[name]["offset"])
            section.tofile(opened)
        opened.truncate(start + offset)
    os.replace(partial, file)
