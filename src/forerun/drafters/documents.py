"""Files of text as token ids: what a corpus is built of.

A file is one document; of a .jsonl file every line is one, its text under the key `text`. Tokenizers are
read with the package `tokenizers` (the extra `corpus`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.drafters.corpus import fingerprint
from forerun.drafters.sightings import Ints
from forerun.errors import ConfigurationError, InvalidCorpus, MissingExtra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PIECE = 1 << 16
"""Text goes to the tokenizer in pieces of about so many characters, cut at the ends of lines."""

_AT_A_TIME = 32


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
    """The texts of one file."""
    try:
        with file.open(encoding="utf-8", errors="replace", newline="") as opened:
            text = opened.read()
    except OSError as error:
        raise InvalidCorpus(f"cannot read {file}: {error.strerror}") from error
    if file.suffix != ".jsonl":
        yield text
        return
    for number, line in numbered_lines(text):
        try:
            yield str(json.loads(line)["text"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidCorpus(f"line {number} of {file} is not a JSON object with a `text`") from error


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
