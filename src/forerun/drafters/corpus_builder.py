"""Building a corpus file from token ids: the sorted places, and what helps to search them.

The suffix array comes from libdivsufsort, which sorts bytes: token ids go in as the bytes of the narrowest
type that tells the ones in use apart.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled
from forerun.drafters.corpus import GUIDED, STRIDE, Bytes, Places, Text, pack_header, shared, token_at
from forerun.drafters.matches import BREAK, LONGEST, Ints
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
    """Write a corpus of these documents and return how many tokens it has, the marks behind each included.

    The file appears under its name only when it is whole.
    """
    with _becoming(file) as opened:
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
        _write(opened, sections, {"vocabulary": vocabulary, "tokenizer": tokenizer, "num_tokens": len(text)})
    return len(text)


@contextmanager
def _becoming(file: Path) -> Iterator[BinaryIO]:
    """A file under another name, beside it; it takes the place of the file if all goes well."""
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    except OSError as error:
        raise InvalidCorpus(f"cannot write {file}: {error.strerror}") from error
    partial = Path(name)
    try:
        with open(handle, "wb") as opened:
            yield opened
        partial.chmod(0o644)
        partial.replace(file)
    except OSError as error:
        raise InvalidCorpus(f"cannot write {file}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _join(documents: Iterable[npt.NDArray[np.integer[Any]]]) -> Text:
    """One text in the narrowest type that holds it, every token one higher, 0 behind every document."""
    parts: list[Text] = []
    top = 0
    for document in documents:
        if len(document):
            if document.min() < 0 or document.max() >= _MOST_TOKENS:
                raise InvalidCorpus(
                    f"token ids run from {document.min()} to {document.max()}: they start at 0"
                )
            last = int(document.max()) + 1
            kind = np.uint16 if last < 2**16 else np.uint32
            parts.append(np.append(document.astype(np.int64) + 1, 0).astype(kind))
            top = max(top, last)
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


def _write(opened: BinaryIO, sections: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> None:
    """Lay the sections out on pages and write everything."""
    offset = 0
    layout: dict[str, dict[str, Any]] = {}
    for name, section in sections.items():
        facts_of = {"dtype": section.dtype.str, "count": section.size, "checksum": zlib.crc32(section.data)}
        layout[name] = {**facts_of, "offset": offset}
        offset += -(-section.nbytes // _PAGE) * _PAGE
    header = {**facts, "sections": layout, "start": 0, "size": 0}
    start = -(-(len(json.dumps(header)) + 256) // _PAGE) * _PAGE
    opened.write(pack_header({**header, "start": start, "size": start + offset}))
    for name, section in sections.items():
        opened.seek(start + layout[name]["offset"])
        opened.write(section.data)
    opened.truncate(start + offset)
