"""Files of text as token ids: what a corpus is built of.

A file is one document; of a .jsonl file every line is one, its text under the key `text`. Tokenizers are
read with the package `tokenizers` (the extra `corpus`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.drafters.corpus import fingerprint
from forerun.drafters.matches import Ints
from forerun.errors import ConfigurationError, InvalidCorpus, MissingExtra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PIECE = 1 << 16
"""Text goes to the tokenizer in pieces of about so many characters, cut at the ends of lines."""

_AT_A_TIME = 32
_VERSION_CONTROL = frozenset(["CVS", "_darcs"])
"""Directories of version control whose names do not begin with a dot."""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Files to build a corpus of, and those that were skipped because they are not UTF-8 text."""

    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)


def find_text_files(paths: Iterable[Path]) -> TextFiles:
    """The text files among `paths`, and below those that are directories in the order of their paths.

    Below a directory, hidden files, directories of version control and empty files are left out. An empty
    file that is named itself is an error, and so is an input without any text.
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
                raise InvalidCorpus(f"{file} is empty: leave it out, or give a file with text")
    if not found.files:
        names = shortened(found.skipped or given)
        reason = "not UTF-8 text" if found.skipped else "no text files"
        raise InvalidCorpus(f"nothing to build a corpus of ({reason}): {names}; give UTF-8 text files")
    return found


def shortened(files: Sequence[Path], most: int = 10) -> str:
    """The names of files in a message, or the first of them."""
    more = f" and {len(files) - most} more" if len(files) > most else ""
    return ", ".join(map(str, files[:most])) + more


def _files_below(folder: Path) -> list[Path]:
    """The files below a directory, sorted by path."""
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
    """Whether this is UTF-8 without NUL bytes."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model: its directory, its tokenizer.json, or its name on a hub."""
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
            f"cannot load a tokenizer from {model}: give the model's directory, which holds a tokenizer.json"
            f" ({error})"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> str:
    """The fingerprint of a tokenizer's table, added tokens included."""
    return fingerprint(tokenizer.get_vocab(with_added_tokens=True))


def read_documents(
    files: Sequence[Path], tokenizer: Tokenizer, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Ints]:
    """The documents of some files in order; reports how many bytes of text were read so far."""
    done = 0
    for file in files:
        for document in _documents(file):
            ids: list[int] = []
            for pieces in _batches(_pieces(document)):
                for encoding in tokenizer.encode_batch(pieces, add_special_tokens=False):
                    ids += encoding.ids
                done += sum(len(piece.encode()) for piece in pieces)
                progress(done)
            yield np.array(ids, dtype=np.int32)


def _documents(file: Path) -> Iterator[str]:
    """The texts of one file, none of them empty."""
    data = _read_bytes(file)
    if not _is_text(data):
        raise InvalidCorpus(f"{file} is not UTF-8 text: convert it, or leave it out")
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
        raise InvalidCorpus(f"{file} is empty: every `text` is empty; leave it out, or give a file with text")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a .jsonl file that are not blank, numbered from 1. Only a line feed ends one."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def asked_in(row: dict[str, Any]) -> Any:
    """What a line of a file of prompts asks: its `prompt`, the first of its `turns`, or its `text`."""
    if "prompt" in row:
        return row["prompt"]
    return row["turns"][0] if "turns" in row else row["text"]


def _pieces(text: str) -> Iterator[str]:
    """A text cut at the ends of lines; a line longer than a piece stays whole."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1 or len(text)
        yield text[start:end]
        start = end


def _batches(pieces: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(pieces)
    while batch := list(islice(iterator, _AT_A_TIME)):
        yield batch
