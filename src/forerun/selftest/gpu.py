"""The GPUs of this machine, by nvidia-smi: unlike torch, it occupies no memory of the device."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RELEASE_TIMEOUT: Final = 60.0
"""Seconds until the memory of a stopped server must be free."""

_SLACK: Final = 512
"""MiB of device memory that may remain in use."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its name, its memory in MiB and the version of its driver."""

    name: str
    memory: int
    driver: str


def find_gpus() -> list[Gpu]:
    """All GPUs that nvidia-smi lists; none without nvidia-smi."""
    rows = _query("name,memory.total,driver_version")
    return [Gpu(name, int(float(memory)), driver) for name, memory, driver in rows]


def used_memory() -> int:
    """MiB in use over all GPUs; 0 without GPUs."""
    return sum(int(float(used)) for (used,) in _query("memory.used"))


def wait_until_released(
    before: int, used: Callable[[], int] = used_memory, timeout: float = RELEASE_TIMEOUT
) -> bool:
    """Wait until no more memory is in use than `before`; returns whether that happened in time.

    The driver frees memory after the process has ended, and vLLM refuses to start without it.
    """
    deadline = time.monotonic() + timeout
    while used() > before + _SLACK:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _query(fields: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in found.stdout.splitlines() if line.strip()]
