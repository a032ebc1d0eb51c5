"""The phases of a self-test, and an estimate of the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum


class PhaseKind(Enum):
    """Kinds of phases with their expected seconds; a finished phase corrects those of its kind."""

    START = 45.0
    OUTPUTS = 15.0
    LOAD = 40.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the self-test."""

    name: str
    kind: PhaseKind


@dataclass
class PhaseClock:
    """Announces each phase as it begins, and estimates the time left from those that have ended."""

    phases: list[Phase]
    announce: Callable[[PhaseClock], None] = lambda _: None
    now: Callable[[], float] = time.monotonic
    current: int = -1
    _began: float = field(init=False)
    _phase_began: float = field(init=False)
    _measured: dict[PhaseKind, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began = self._phase_began = self.now()

    def begin(self, name: str) -> None:
        """Begin the phase of this name, which ends the one before; phases between the two are skipped."""
        self.end()
        later = [phase.name for phase in self.phases[self.current + 1 :]]
        skipped = later.index(name)
        del self.phases[self.current + 1 : self.current + 1 + skipped]
        self.current += 1
        self._phase_began = self.now()
        self.announce(self)

    def end(self) -> None:
        """End the current phase."""
        if 0 <= self.current < len(self.phases):
            kind = self.phases[self.current].kind
            self._measured.setdefault(kind, []).append(self.now() - self._phase_began)

    def extend(self, phases: Sequence[Phase]) -> None:
        """Add phases at the end."""
        self.phases += phases

    def expected(self, phases: Sequence[Phase]) -> float:
        """Expected seconds of these phases."""
        return sum(self._seconds(phase.kind) for phase in phases)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self.now() - self._began

    @property
    def remaining(self) -> float:
        """Estimated seconds until the end of the last phase."""
        later = self.expected(self.phases[self.current + 1 :])
        if self.current < 0:
            return later
        here = self._seconds(self.phases[self.current].kind)
        return later + max(0.0, here - (self.now() - self._phase_began))

    def _seconds(self, kind: PhaseKind) -> float:
        measured = self._measured.get(kind)
        return sum(measured) / len(measured) if measured else kind.value
