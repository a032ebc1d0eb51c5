"""Counts of what speculation did, kept where other processes can read them.

vLLM's scheduler runs in one process and its web server in others. One writer, any number of readers, a
memory-mapped file between them: counting is adding to an array, and reading never waits.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a count, and the labels that say what it is a count of."""

Values: TypeAlias = npt.NDArray[np.float64]

_SIZE: Final = 8


def share(file: Path, series: Sequence[Series]) -> Values:
    """Zeros, one for every name, in a new file that others can read."""
    header = json.dumps(list(series)).encode()
    header += b" " * (-len(header) % _SIZE)
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    with os.fdopen(descriptor, "r+b") as opened:
        opened.write(len(header).to_bytes(_SIZE, "little") + header + bytes(_SIZE * len(series)))
    return np.memmap(file, np.float64, "r+", offset=_SIZE + len(header), shape=(len(series),))


def read(file: Path) -> Iterator[tuple[Series, float]]:
    """The counts in a file, as they are now."""
    content = file.read_bytes()
    size = int.from_bytes(content[:_SIZE], "little")
    series: list[tuple[str, list[tuple[str, str]]]] = json.loads(content[_SIZE : _SIZE + size])
    values = np.frombuffer(content, np.float64, offset=_SIZE + size)
    for (name, labels), value in zip(series, values.tolist(), strict=True):
        yield (name, tuple((key, label) for key, label in labels)), value


def file_of(instance: str, engine: int) -> Path:
    """Where the counts of one engine of a vLLM are kept."""
    return Path(tempfile.gettempdir()) / f"forerun-{os.getuid()}-{instance}-{engine}.counts"


def files_of(instance: str) -> list[Path]:
    """Where the counts of all engines of a vLLM are kept, as far as they run on this host."""
    return sorted(Path(tempfile.gettempdir()).glob(f"forerun-{os.getuid()}-{instance}-*.counts"))
