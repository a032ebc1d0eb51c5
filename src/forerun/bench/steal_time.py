"""What others take of a machine: time of its cores that the host gave away, where the kernel tells.

On a machine that is shared, speeds of one minute say little of the next. What was taken is known apart from
any speed, so that to ask again for its sake favours nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Of all cores since the machine started: those that went to others, and all."""

    stolen: int
    every: int

    @classmethod
    def now(cls) -> CpuTicks:
        """As the kernel counts them; without one that does, nothing is ever taken."""
        try:
            words = STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()
        except OSError:
            return cls(0, 0)
        user, nice, system, idle, waiting, irq, softirq, stolen = map(int, words[1:9])
        return cls(stolen, user + nice + system + idle + waiting + irq + softirq + stolen)

    def share_since(self, before: CpuTicks) -> float:
        """The share that went to others meanwhile."""
        return (self.stolen - before.stolen) / max(1, self.every - before.every)
