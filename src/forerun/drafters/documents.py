"""Text files as token ids, the input of corpora.

A file is one document. In a .jsonl file every line is one document, its text under the key `text`. Tokenizers
are read with the package `tokenizers` (the extra `corpus`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.drafters.corpus import fingerprint
from forerun.drafters.matches import Ints
from forerun.errors import ConfigurationError, InvalidCorpus, MissingExtra
from forerun.json_records import numbered_lines

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHUNK_CHARS = 1 << 16
"""Approximate number of characters per call of the tokenizer; chunks end at line ends."""

_BATCH_SIZE = 32
_MAX_NAMES = 10
_VERSION_CONTROL = frozenset(["CVS", "_darcs"])
"""Version-control directories whose names have no leading dot."""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Files to build a corpus from, and files skipped because they are not UTF-8 text."""

    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)


def find_text_files(paths: Iterable[Path]) -> TextFiles:
    """The text files among `paths`, and below directories sorted by path.

    Below a directory, hidden files, version-control directories and empty files are skipped. An empty file
    named in `paths` is an error, and so is an input without any text.
    """
    given = list(paths)
    found = TextFiles()
    for path in given:
        for file in _files_below(path) if path.is_dir() else [path]:
            data = _read_bytes(file)
            if not _is_text(data):
                found.skipped.append(file)
            elif data.strip():
                found.files.append(file)
            elif file == path:
                raise InvalidCorpus(f"{file} is empty: omit it, or pass a file with text")
    if not found.files:
        names = list_names(found.skipped or given)
        reason = "not UTF-8 text" if found.skipped else "no text files"
        raise InvalidCorpus(f"no text to build a corpus from ({reason}): {names}; pass UTF-8 text files")
    return found


def list_names(files: Sequence[Path]) -> str:
    """File names for a message, at most `_MAX_NAMES` of them."""
    more = f" and {len(files) - _MAX_NAMES} more" if len(files) > _MAX_NAMES else ""
    return ", ".join(map(str, files[:_MAX_NAMES])) + more


def _files_below(folder: Path) -> list[Path]:
    """Files below a directory, sorted by path."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _VERSION_CONTROL]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidCorpus(f"cannot read {file}: {error.strerror}") from error


def _is_text(data: bytes) -> bool:
    """Whether the bytes are UTF-8 without NUL."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model, given its directory, its tokenizer.json, or its name on the hub."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("tokenizers", "corpus") from error
    path = Path(model)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file)) if file.exists() else Tokenizer.from_pretrained(model)
    except Exception as error:
        raise ConfigurationError(
            f"cannot load a tokenizer from {model}: pass the model's directory, which holds a tokenizer.json"
            f" ({error})"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> str:
    """Fingerprint of a tokenizer's vocabulary, added tokens included."""
    return fingerprint(tokenizer.get_vocab(with_added_tokens=True))


def read_documents(
    files: Sequence[Path], tokenizer: Tokenizer, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Ints]:
    """Documents of the files in order; `progress` gets the number of bytes tokenized so far."""
    done = 0
    for file in files:
        for document in _documents(file):
            ids: list[int] = []
            for chunks in _batches(_chunks(document)):
                for encoding in tokenizer.encode_batch(chunks, add_special_tokens=False):
                    ids += encoding.ids
                done += sum(len(chunk.encode()) for chunk in chunks)
                progress(done)
            yield np.array(ids, dtype=np.int32)


def _documents(file: Path) -> Iterator[str]:
    """Non-empty texts of one file."""
    data = _read_bytes(file)
    if not _is_text(data):
        raise InvalidCorpus(f"{file} is not UTF-8 text: convert or omit it")
    text = data.decode()
    if file.suffix != ".jsonl":
        yield text
        return
    empty = True
    for number, line in numbered_lines(text):
        try:
            document = str(json.loads(line)["text"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidCorpus(f"line {number} of {file} is not a JSON object with a `text`") from error
        if document:
            empty = False
            yield document
    if empty:
        raise InvalidCorpus(f"{file} is empty: every `text` is empty; omit it, or pass a file with text")


def _chunks(text: str) -> Iterator[str]:
    """Split a text at line ends; a line longer than a chunk stays whole."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHUNK_CHARS) + 1 or len(text)
        yield text[start:end]
        start = end


def _batches(chunks: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(chunks)
    while batch := list(islice(iterator, _BATCH_SIZE)):
        yield batch
