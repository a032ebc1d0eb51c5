"""How much CPU time others used during a measurement, from the counters of Linux's /proc.

Others are other guests of the host (steal time) and processes of other process groups. The processes of a
server share one process group; vLLM's engine process, which waits for its worker in a busy loop, is not
counted as another's. On systems without /proc nothing is counted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

MIN_TICKS: Final = 20
"""CPU time in ticks of 10 ms over all CPUs below which shares are not meaningful and count as zero."""

_GROUP, _USER, _SYSTEM = 2, 11, 12
"""Fields of /proc/PID/stat after the name of the program: process group, ticks in user and kernel mode."""


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Steal ticks, all ticks, and ticks in use by this machine, of a set of CPUs since boot."""

    steal: int
    total: int
    busy: int = 0

    @classmethod
    def now(cls) -> CpuTicks:
        """Read the kernel's counters of all CPUs; zero on a system without /proc/stat."""
        return cls.of_lines({"cpu"})

    @classmethod
    def of_lines(cls, names: Collection[str]) -> CpuTicks:
        """Add up the lines of /proc/stat with these names: `cpu` for all CPUs, or `cpu0`, `cpu1`, ..."""
        steal = busy = total = 0
        for line in _read(PROC / "stat").splitlines():
            name, *fields = line.split()
            if name in names:
                user, nice, system, idle, iowait, irq, softirq, stolen = map(int, fields[:8])
                in_use = user + nice + system + irq + softirq
                steal, busy, total = steal + stolen, busy + in_use, total + in_use + idle + iowait + stolen
        return cls(steal, total, busy)

    def steal_share_since(self, before: CpuTicks) -> float:
        """Steal time as a share of all CPU time since `before`."""
        return (self.steal - before.steal) / max(1, self.total - before.total)


@dataclass(frozen=True, slots=True)
class CpuSnapshot:
    """CPU time so far: of the CPUs that this process may use, of the other CPUs, and of the processes of this
    process group, separately for those that cannot leave the CPUs of this process (`bound`).
    """

    ticks: CpuTicks
    bound: Mapping[str, int]
    floating: Mapping[str, int] = field(default_factory=dict)
    busy_elsewhere: int = 0

    @classmethod
    def now(cls) -> CpuSnapshot:
        """Read the kernel's counters."""
        cpus, group = _usable_cpus(), list(_group_ticks())
        ticks = CpuTicks.of_lines({f"cpu{number}" for number in cpus})
        bound = {process: spent for process, spent, allowed in group if allowed <= cpus}
        floating = {process: spent for process, spent, _ in group if process not in bound}
        return cls(ticks, bound, floating, CpuTicks.now().busy - ticks.busy)

    def shares_since(self, before: CpuSnapshot) -> LoadShares:
        """Shares of the CPU time since `before`.

        The time of processes that are not bound counts on other CPUs as far as those were in use: vLLM's
        engine process moves to the CPUs of its worker only if others leave it no room elsewhere.
        """
        total = self.ticks.total - before.ticks.total
        if total < MIN_TICKS:
            return LoadShares()
        bound = _spent(before.bound, self.bound)
        floating = _spent(before.floating, self.floating) - (self.busy_elsewhere - before.busy_elsewhere)
        others = self.ticks.busy - before.ticks.busy - bound - max(0, floating)
        return LoadShares(self.ticks.steal_share_since(before.ticks), max(0.0, others / total))


@dataclass(frozen=True, slots=True)
class LoadShares:
    """Shares of CPU time that other guests of the host and other process groups used."""

    steal: float = 0.0
    others: float = 0.0


def _usable_cpus() -> frozenset[int]:
    """The CPUs on which threads of this process may run; vLLM binds each of them to one."""
    cpus: set[int] = set()
    for thread in _numbers(PROC / "self" / "task"):
        with suppress(OSError):  # the thread has ended
            cpus |= os.sched_getaffinity(int(thread))
    return frozenset(cpus)


def _spent(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Ticks that processes have used in between."""
    return sum(ticks - before.get(process, 0) for process, ticks in after.items())


def _group_ticks() -> Iterator[tuple[str, int, set[int]]]:
    """Each process of this process group, its CPU time in ticks, and the CPUs on which it may run."""
    group = str(os.getpgrp())
    for process in _numbers(PROC):
        fields = _read(PROC / process / "stat").rpartition(")")[2].split()
        if fields and fields[_GROUP] == group:
            with suppress(OSError):
                allowed = os.sched_getaffinity(int(process))
                yield process, int(fields[_USER]) + int(fields[_SYSTEM]), allowed


def _numbers(directory: Path) -> list[str]:
    """Entries of a directory of /proc that are process or thread ids."""
    with suppress(OSError):
        return [entry for entry in os.listdir(directory) if entry.isdigit()]
    return []


def _read(file: Path) -> str:
    """Contents of a file of /proc; empty if the process has ended or the file does not exist."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""
