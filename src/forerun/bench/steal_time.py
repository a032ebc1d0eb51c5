"""Steal time: CPU time that the host of a virtual machine gave to others, as Linux counts it.

On a shared machine, speeds vary from minute to minute. Steal time is measured independently of any speed, so
that repeating a measurement because of it does not favour any system.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Steal ticks and total ticks of all cores since boot."""

    steal: int
    total: int

    @classmethod
    def now(cls) -> CpuTicks:
        """Read the kernel's counters; both are 0 on a system without /proc/stat."""
        try:
            fields = STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()
        except OSError:
            return cls(0, 0)
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[1:9])
        return cls(steal, user + nice + system + idle + iowait + irq + softirq + steal)

    def steal_share_since(self, before: CpuTicks) -> float:
        """Steal time as a share of all CPU time since `before`."""
        return (self.steal - before.steal) / max(1, self.total - before.total)
