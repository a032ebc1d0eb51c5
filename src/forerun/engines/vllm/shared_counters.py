"""Counters in shared memory: the scheduler's process writes them, the web server's processes read them.

Each engine has one memory-mapped file with a single writer and any number of readers. Counting adds to an
array, and reading never blocks. The files are in a directory that only the current user can access.
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
"""A metric name and its labels."""

Values: TypeAlias = npt.NDArray[np.float64]

INSTANCE_VARIABLE: Final = "FORERUN_INSTANCE"
"""Environment variable that all processes of one server share; vLLM's own id is not shared by all."""

_SIZE: Final = 8


def create_counters(instance: str, engine: int, series: Sequence[Series]) -> Values:
    """Zeros, one per series, in a new shared file. Removes the files of processes that have ended."""
    header = json.dumps(list(series)).encode()
    header += b" " * (-len(header) % _SIZE)
    folder = _folder()
    for file in folder.glob("*.counts"):
        if not _is_alive(file):
            file.unlink(missing_ok=True)
    file = folder / f"{_key(instance)}-{engine}-{os.getpid()}.counts"
    file.write_bytes(len(header).to_bytes(_SIZE, "little") + header + bytes(_SIZE * len(series)))
    values = np.memmap(file, np.float64, "r+", offset=_SIZE + len(header), shape=(len(series),))
    return np.asarray(values)  # items of an ndarray are faster to access than those of a memmap


def read_counters(instance: str) -> Iterator[tuple[str, Series, float]]:
    """Engine, series and current value of every counter of an instance on this host."""
    for file in sorted(_folder().glob(f"{_key(instance)}-*-*.counts")):
        try:
            content = file.read_bytes()
            size = int.from_bytes(content[:_SIZE], "little")
            series = json.loads(content[_SIZE : _SIZE + size])
            values = np.frombuffer(content, np.float64, offset=_SIZE + size)
        except (OSError, ValueError):
            continue  # being written, or removed
        engine = file.stem.split("-")[-2]
        for (name, labels), value in zip(series, values.tolist(), strict=True):
            yield engine, (name, tuple((key, label) for key, label in labels)), value


def _key(instance: str) -> str:
    return os.environ.get(INSTANCE_VARIABLE) or instance


def _is_alive(file: Path) -> bool:
    """Whether the process that writes a file still runs."""
    try:
        os.kill(int(file.stem.split("-")[-1]), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True


def _folder() -> Path:
    """The directory of the current user's counters; raises unless no other user can access it."""
    folder = Path(tempfile.gettempdir()) / f"forerun-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a directory that only the current user can access; remove it"
        )
    return folder
