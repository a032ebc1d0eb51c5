"""Building corpus files: the sorted positions and the tables that speed up their search.

libdivsufsort computes the suffix array. It sorts bytes, so token ids are passed as the narrowest type that
distinguishes the ids in use.
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
from forerun.drafters.corpus import pack_header
from forerun.drafters.corpus_lookup import (
    GUIDE_TOKENS,
    STRIDE,
    ByteArray,
    PositionArray,
    TokenArray,
    shared_context,
    token_at,
)
from forerun.drafters.matches import BREAK, MAX_MATCH, Ints
from forerun.errors import InvalidCorpus, MissingExtra

_PAGE = 4096
_MAX_TOKENS = 2**31 - 2


def build(
    documents: Iterable[npt.NDArray[np.integer[Any]]],
    file: Path,
    *,
    vocabulary: str,
    tokenizer: str,
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Write a corpus of these documents; returns its number of tokens, separators included.

    The file is written atomically.
    """
    with _atomic_file(file) as opened:
        text = _concatenate(documents)
        progress("sorting contexts")
        positions = sort_positions(text)
        progress("comparing neighbours")
        common = np.empty(len(text), dtype=np.uint8)
        _fill_common(text, positions, common)
        guide = np.zeros((-(-len(text) // STRIDE), GUIDE_TOKENS), dtype=text.dtype)
        _fill_guide(text, positions, guide)
        progress("writing")
        sections = {
            "text": text,
            "places": positions,
            "common": common,
            "guide": guide,
            "outline": guide[::STRIDE].copy(),
        }
        _write(opened, sections, {"vocabulary": vocabulary, "tokenizer": tokenizer, "num_tokens": len(text)})
    return len(text)


@contextmanager
def _atomic_file(file: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `file` that replaces it on success."""
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


def _concatenate(documents: Iterable[npt.NDArray[np.integer[Any]]]) -> TokenArray:
    """Concatenate documents in the narrowest dtype: ids plus one, and 0 after each document."""
    parts: list[TokenArray] = []
    max_id = 0
    for document in documents:
        if len(document):
            if document.min() < 0 or document.max() >= _MAX_TOKENS:
                raise InvalidCorpus(
                    f"token ids range from {document.min()} to {document.max()};"
                    f" expected 0 to {_MAX_TOKENS - 1}"
                )
            last = int(document.max()) + 1
            dtype = np.uint16 if last < 2**16 else np.uint32
            parts.append(np.append(document.astype(np.int64) + 1, 0).astype(dtype))
            max_id = max(max_id, last)
    num = sum(len(part) for part in parts)
    if not num:
        raise InvalidCorpus("no text to build a corpus from: every document is empty")
    if num > _MAX_TOKENS:
        raise InvalidCorpus(f"{num:,} tokens exceed the limit of a corpus ({_MAX_TOKENS:,}): build several")
    return np.concatenate(parts, dtype=np.uint16 if max_id < 2**16 else np.uint32)


def sort_positions(text: TokenArray) -> PositionArray:
    """All positions of a text, sorted by their contexts read backwards."""
    try:
        from pydivsufsort import divsufsort  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("pydivsufsort", "corpus") from error
    used = np.bincount(text) > 0
    dtype = np.uint16 if used.sum() <= 2**16 else np.uint32
    ranks = (np.cumsum(used) - 1).astype(dtype)
    order: npt.NDArray[np.signedinteger[Any]] = divsufsort(np.ascontiguousarray(ranks[text][::-1]))
    return (len(text) - 1 - order).astype(np.uint32)


@compiled
def _fill_common(text: TokenArray, positions: PositionArray, common: ByteArray) -> None:
    """Fill in the context that each position shares with its predecessor in sorted order."""
    tail = np.empty(MAX_MATCH, dtype=np.int32)
    common[0] = 0
    for i in range(1, positions.size):
        _copy_context(text, positions[i], tail)
        common[i] = shared_context(text, positions[i - 1], tail)


@compiled
def _fill_guide(text: TokenArray, positions: PositionArray, guide: TokenArray) -> None:
    """Fill in the nearest context of every STRIDE-th position."""
    for row in range(guide.shape[0]):
        position = int(positions[row * STRIDE])
        for i in range(min(GUIDE_TOKENS, position + 1)):
            guide[row, i] = text[position - i]


@compiled
def _copy_context(text: TokenArray, position: int, tail: Ints) -> None:
    """Copy the tokens at and before a position; positions before the text get a value below any token."""
    for i in range(tail.size):
        tail[i] = token_at(text, position - i) if i <= position else BREAK - 1


def _write(opened: BinaryIO, sections: dict[str, npt.NDArray[Any]], metadata: dict[str, Any]) -> None:
    """Align sections to pages and write the file."""
    offset = 0
    layout: dict[str, dict[str, Any]] = {}
    for name, section in sections.items():
        section_header = {
            "dtype": section.dtype.str,
            "count": section.size,
            "checksum": zlib.crc32(section.data),
        }
        layout[name] = {**section_header, "offset": offset}
        offset += -(-section.nbytes // _PAGE) * _PAGE
    header = {**metadata, "sections": layout, "start": 0, "size": 0}
    start = -(-(len(json.dumps(header)) + 256) // _PAGE) * _PAGE
    opened.write(pack_header({**header, "start": start, "size": start + offset}))
    for name, section in sections.items():
        opened.seek(start + layout[name]["offset"])
        opened.write(section.data)
    opened.truncate(start + offset)
