"""The procedure of the self-test: one server at a time, the baseline first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from forerun.engines.vllm import sync_debug
from forerun.engines.vllm.runner_log import RunnerMode, read_runner_mode
from forerun.errors import ForerunError
from forerun.selftest.checks import CheckVerdict, SelftestCheck, undecided
from forerun.selftest.identity import EXACT, KINDS, check_name, compare_outputs_of
from forerun.selftest.live_server import FORERUN, STOCK, Launcher, LiveServer
from forerun.selftest.load_rounds import Cell, CellRun, measure_load
from forerun.selftest.phases import Phase, PhaseClock, PhaseKind
from forerun.selftest.plan import SelftestPlan
from forerun.selftest.recorded_outputs import record_outputs
from forerun.selftest.sync_check import synchronization_check
from forerun.selftest.throughput import CellResult, compare_load, load_identity_check, throughput_check
from forerun.servers.endpoint import fault_notes

SERVED: Final = "served precision"
AGAIN: Final = f"{STOCK}, once more"


@dataclass
class SelftestRun:
    """A self-test and its findings so far.

    `served_dtype` is the dtype of the served precision as far as it is known before the start: float32 needs
    no servers of its own then. The baseline runs a second time if that fits into `time_limit` seconds; with
    None it does not.
    """

    plan: SelftestPlan
    launch: Launcher
    clock: PhaseClock
    served_dtype: str | None
    has_cuda: bool
    time_limit: float | None = 300.0
    checks: list[SelftestCheck] = field(default_factory=list)
    modes: dict[str, RunnerMode] = field(default_factory=dict)
    cells: list[CellResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failure: str = ""
    """Why a server of the served precision did not start or stopped; then later checks are missing."""

    _sync_log: str = ""

    def run(self) -> None:
        """Make all checks. An error of a server ends the run and is kept in `failure`."""
        if self.served_dtype != EXACT:
            self._check_exact()
        try:
            self._check_served()
        except ForerunError as error:
            self.failure = str(error)
        self.checks.append(synchronization_check(self._sync_log, has_cuda=self.has_cuda))
        if self.cells:
            self.checks += [load_identity_check(self.cells), throughput_check(self.cells)]
        self.clock.end()

    @property
    def exit_code(self) -> int:
        """1: outputs differ. 2: a server did not start, or stopped. 0: neither."""
        if any(each.is_identity and each.verdict is CheckVerdict.FAILED for each in self.checks):
            return 1
        return 2 if self.failure else 0

    def _check_exact(self) -> None:
        """Compare outputs in float32. Servers that do not fit leave the checks undecided."""
        try:
            with self._server(STOCK, exact=True) as server:
                self.clock.begin(outputs_phase(STOCK, EXACT))
                recorded = record_outputs(server.endpoint, self.plan)
            with self._server(FORERUN, exact=True) as server:
                self.clock.begin(outputs_phase(FORERUN, EXACT))
                self.checks += compare_outputs_of(server.every_draft, recorded, self.plan, EXACT)
        except ForerunError as error:
            made = {check.name for check in self.checks}
            reason = f"not compared in float32: {str(error).splitlines()[0]}"
            missing = [name for kind in KINDS if (name := check_name(kind, EXACT)) not in made]
            self.checks += [undecided(name, reason, is_identity=True) for name in missing]

    def _check_served(self) -> None:
        """Compare outputs and throughput in the served precision."""
        with self._server(STOCK, exact=False) as server:
            self.clock.begin(outputs_phase(STOCK, SERVED))
            recorded = record_outputs(server.endpoint, self.plan)
            self.clock.begin(load_phase(STOCK))
            baseline, num_single = measure_load(server.endpoint, self.plan)
        with self._server(FORERUN, exact=False) as server:
            dtype = self.modes[FORERUN].dtype or self.served_dtype or "unknown dtype"
            self.clock.begin(outputs_phase(FORERUN, SERVED))
            self.checks += compare_outputs_of(server.every_draft, recorded, self.plan, dtype)
            self.clock.begin(load_phase(FORERUN))
            ours, _ = measure_load(server.endpoint, self.plan, num_single)
        again = self._baseline_again(num_single)
        self.cells = compare_load(baseline, ours, again)

    def _baseline_again(self, num_single: int) -> Mapping[Cell, CellRun] | None:
        """The throughput of a second run of the baseline, if there is time for it."""
        if self.time_limit is None:
            return None
        load = load_phase(AGAIN)
        phases = [Phase(start_phase(AGAIN, SERVED), PhaseKind.START), Phase(load, PhaseKind.LOAD)]
        if self.clock.elapsed + self.clock.expected(phases) > self.time_limit:
            self.notes.append(
                f"{STOCK} ran once: a second run, which shows the drift of this machine, did not fit into"
                f" --time-limit {self.time_limit:g}"
            )
            return None
        self.clock.extend(phases)
        with self._server(AGAIN, exact=False) as server:
            self.clock.begin(load)
            return measure_load(server.endpoint, self.plan, num_single)[0]

    @contextmanager
    def _server(self, name: str, *, exact: bool) -> Iterator[LiveServer]:
        """Start a server; once it has stopped, its faults and its log are evaluated."""
        self.clock.begin(start_phase(name, EXACT if exact else SERVED))
        is_forerun = name == FORERUN
        watched = is_forerun and not sync_debug.read_sync_counts(self._sync_log)
        environment = {sync_debug.VARIABLE: "1"} if self.has_cuda and watched else {}
        role = FORERUN if is_forerun else STOCK
        with self.launch(role, exact=exact, environment=environment) as server:
            if not exact:
                self.modes[role] = read_runner_mode(server.read_log())
            yield server
            self.notes += fault_notes(server.endpoint, server.every_draft)
            if watched:
                self._sync_log = server.read_log()


def planned_phases(served_dtype: str | None) -> list[Phase]:
    """The phases of a run, without the second run of the baseline."""
    phases = []
    for precision in (SERVED,) if served_dtype == EXACT else (EXACT, SERVED):
        for name in (STOCK, FORERUN):
            phases.append(Phase(start_phase(name, precision), PhaseKind.START))
            phases.append(Phase(outputs_phase(name, precision), PhaseKind.OUTPUTS))
            if precision == SERVED:
                phases.append(Phase(load_phase(name), PhaseKind.LOAD))
    return phases


def start_phase(name: str, precision: str) -> str:
    """The phase in which a server starts."""
    return f"{name}, {precision}: starting"


def outputs_phase(name: str, precision: str) -> str:
    """The phase in which outputs are recorded or compared."""
    return f"{name}, {precision}: {'comparing' if name == FORERUN else 'recording'} outputs"


def load_phase(name: str) -> str:
    """The phase in which throughput is measured."""
    return f"{name}, {SERVED}: measuring throughput"
