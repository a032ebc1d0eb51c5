"""Counts of what speculation did, kept where other processes can read them.

vLLM's scheduler runs in one process and its web server in others. One writer, any number of readers, a
memory-mapped file between them: counting is adding to an array, and reading never waits. The files lie in a
directory that is nobody else's.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a count, and the labels that say what it is a count of."""

Values: TypeAlias = npt.NDArray[np.float64]

INSTANCE: Final = "FORERUN_INSTANCE"
"""The environment variable that all processes of one server share; vLLM's own id is not shared by all."""

_SIZE: Final = 8


def share(instance: str, engine: int, series: Sequence[Series]) -> Values:
    """Zeros, one for every name, in a new file that others can read. Files of the dead are removed."""
    header = json.dumps(list(series)).encode()
    header += b" " * (-len(header) % _SIZE)
    folder = _folder()
    for file in folder.glob("*.counts"):
        if not _is_alive(file):
            file.unlink(missing_ok=True)
    file = folder / f"{_key(instance)}-{engine}-{os.getpid()}.counts"
    file.write_bytes(len(header).to_bytes(_SIZE, "little") + header + bytes(_SIZE * len(series)))
    values = np.memmap(file, np.float64, "r+", offset=_SIZE + len(header), shape=(len(series),))
    return np.asarray(values)  # whose items are quicker to read and to write


def read(instance: str) -> Iterator[tuple[str, Series, float]]:
    """The counts of all engines of a vLLM on this host, as they are now, each with its engine."""
    for file in sorted(_folder().glob(f"{_key(instance)}-*-*.counts")):
        try:
            content = file.read_bytes()
            size = int.from_bytes(content[:_SIZE], "little")
            series = json.loads(content[_SIZE : _SIZE + size])
            values = np.frombuffer(content, np.float64, offset=_SIZE + size)
        except (OSError, ValueError):
            continue  # it is being made, or it is gone
        engine = file.stem.split("-")[-2]
        for (name, labels), value in zip(series, values.tolist(), strict=True):
            yield engine, (name, tuple((key, label) for key, label in labels)), value


def _key(instance: str) -> str:
    return os.environ.get(INSTANCE) or instance


def _is_alive(file: Path) -> bool:
    """Whether the process that writes a file is still there."""
    try:
        os.kill(int(file.stem.split("-")[-1]), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True


def _folder() -> Path:
    """A directory of this user's that nobody else can look into, let alone write to."""
    folder = Path(tempfile.gettempdir()) / f"forerun-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a directory of this user's alone: remove it")
    return folder
