"""Step costs at the start of an engine: cached curves are checked, and disturbed profiles are provisional."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.control import cost_cache
from forerun.control.cost_profiler import (
    CHECK_REPEATS,
    CHECK_SECONDS,
    MAX_OTHERS_SHARE,
    MAX_SHAPE_ERROR,
    MAX_STEAL_SHARE,
    NUM_CHECKS,
    CostProfiler,
    check_sizes,
)
from forerun.control.cost_sweeps import profile_sizes
from forerun.control.machine_load import CpuSnapshot, CpuTicks
from forerun.control.step_cost import StepCost

TICKS_PER_STEP = 1000
LOGGER = logging.getLogger("forerun.test_cost_profiler")


def two_cores(rows: int) -> float:
    """Rows are nearly free up to 64."""
    return 0.05 * (1 + 0.005 * rows)


def one_core(rows: int) -> float:
    """Slower, and dearer right above a tile boundary; otherwise of the same shape."""
    return 2.0 * two_cores(rows) * (1.46 if 16 < rows < 32 else 1.0)


class Machine:
    """A machine whose steps take `seconds`; `steal` and `others` are shares of CPU time while it runs."""

    def __init__(self, seconds: Callable[[int], float], steal: float = 0.0, others: float = 0.0) -> None:
        self.seconds, self.steal, self.others = seconds, steal, others
        self.measured: list[int] = []
        self._ticks = CpuTicks(0, 0)
        self._own = 0

    def measure(self, rows: int) -> float:
        self.measured.append(rows)
        stolen, used = (round(share * TICKS_PER_STEP) for share in (self.steal, self.others))
        own = TICKS_PER_STEP - stolen - used
        before = self._ticks
        self._ticks = CpuTicks(before.steal + stolen, before.total + TICKS_PER_STEP, before.busy + used + own)
        self._own += own
        return self.seconds(rows)

    def snapshot(self) -> CpuSnapshot:
        return CpuSnapshot(self._ticks, {"1": self._own})

    def start(self, *, max_rows: int = 64, on_cpu: bool = True) -> StepCost:
        """Start an engine on this machine."""
        self.measured.clear()
        return CostProfiler(
            "curve", self.measure, max_rows, LOGGER, on_cpu=on_cpu, snapshot=self.snapshot
        ).load_or_profile()

    def has_profiled(self) -> bool:
        """Whether the last start measured every size."""
        return set(profile_sizes(64)) <= set(self.measured)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the curve, in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "forerun" / "costs" / "curve.json"


def is_provisional(file: Path) -> bool:
    return bool(json.loads(file.read_text())["provisional"])


def test_a_curve_that_the_machine_confirms_is_kept(file: Path) -> None:
    machine = Machine(two_cores)
    first = machine.start()
    assert machine.has_profiled()
    written = file.read_bytes()
    second = machine.start()
    assert not machine.has_profiled()
    assert len(machine.measured) == 1 + CHECK_REPEATS * len(set(machine.measured))
    assert second.at(64) == pytest.approx(first.at(64))
    assert file.read_bytes() == written


@pytest.mark.parametrize("factor", [0.5, 2.0, 10.0])
def test_a_uniformly_slower_or_faster_machine_keeps_the_curve(file: Path, factor: float) -> None:
    Machine(two_cores).start()
    written = file.read_bytes()
    other = Machine(lambda rows: factor * two_cores(rows))
    other.start()
    assert not other.has_profiled()
    assert file.read_bytes() == written


@pytest.mark.parametrize(("cached", "actual"), [(one_core, two_cores), (two_cores, one_core)])
def test_a_curve_of_another_number_of_cores_is_profiled_anew(
    file: Path, cached: Callable[[int], float], actual: Callable[[int], float]
) -> None:
    Machine(cached).start()
    machine = Machine(actual)
    cost = machine.start()
    assert machine.has_profiled()
    assert not cost.provisional
    assert cost.profiled.tolist() == [actual(rows) for rows in profile_sizes(64)]
    kept = cost_cache.load("curve")
    assert kept is not None
    assert kept.profiled.tolist() == cost.profiled.tolist()
    assert not is_provisional(file)


def test_a_check_without_the_tile_boundary_would_not_notice_the_other_number_of_cores() -> None:
    cached = StepCost(profile_sizes(64), [one_core(rows) for rows in profile_sizes(64)])
    sizes = check_sizes(cached, 64)
    assert {16, 17} <= set(sizes)
    blind = [rows for rows in sizes if rows != 17]
    assert blind == [1, 16]
    ratios = [two_cores(rows) / one_core(rows) for rows in blind]
    assert max(ratios) <= MAX_SHAPE_ERROR * min(ratios)


def test_a_corrected_curve_is_checked_by_what_was_profiled() -> None:
    machine = Machine(two_cores)
    cost = machine.start()
    for number in range(400):  # a constant overhead of the engine flattens the curve of whole steps
        rows = 64 if number % 2 else 1
        cost.update(rows, 0.5 * two_cores(rows) if rows == 64 else two_cores(rows))
    corrected = cost.to_dict()["bands"]["0"]
    assert cost_cache.save_corrected("curve", cost)
    again = machine.start()
    assert not machine.has_profiled()
    assert again.to_dict()["bands"]["0"] == pytest.approx(corrected)


def test_one_disturbed_sweep_does_not_discard_a_curve() -> None:
    machine = Machine(two_cores)
    machine.start()
    slow = iter([1.0, *[3.0, 1.0, 1.0, 1.0] * 2])
    machine.seconds = lambda rows: two_cores(rows) * next(slow, 1.0)
    machine.start()
    assert not machine.has_profiled()


def test_a_second_check_saves_a_curve_that_the_first_contradicts() -> None:
    machine = Machine(two_cores)
    machine.start()
    num_sizes = len(check_sizes(StepCost(profile_sizes(64), [*map(two_cores, profile_sizes(64))]), 64))
    passes_of_a_check = 1 + CHECK_REPEATS * num_sizes
    machine.seconds = lambda rows: (
        0.5 * one_core(rows) if len(machine.measured) <= passes_of_a_check else two_cores(rows)
    )
    machine.start()
    assert not machine.has_profiled()
    assert len(machine.measured) == 1 + NUM_CHECKS * CHECK_REPEATS * num_sizes


@pytest.mark.parametrize(
    ("steal", "others", "on_cpu", "provisional"),
    [
        (0.0, 0.0, True, False),
        (MAX_STEAL_SHARE / 2, MAX_OTHERS_SHARE / 2, True, False),
        (2 * MAX_STEAL_SHARE, 0.0, True, True),
        (0.0, 2 * MAX_OTHERS_SHARE, True, True),
        (0.5, 0.5, False, False),
    ],
)
def test_a_profile_while_others_used_the_machine_is_provisional_and_measured_again(
    file: Path, steal: float, others: float, on_cpu: bool, provisional: bool
) -> None:
    machine = Machine(two_cores, steal, others)
    assert machine.start(on_cpu=on_cpu).provisional == provisional
    assert is_provisional(file) == provisional
    machine.steal = machine.others = 0.0
    assert not machine.start(on_cpu=on_cpu).provisional
    assert machine.has_profiled() == provisional
    assert not is_provisional(file)


def test_the_spread_of_repeats_alone_makes_a_profile_provisional(file: Path) -> None:
    machine = Machine(two_cores)
    noise = [1.0, 1.5, 2.1, 1.2, 3.0, 1.7, 2.5]
    machine.seconds = lambda rows: two_cores(rows) * noise[len(machine.measured) ** 2 % len(noise)]
    assert machine.start().provisional
    machine.seconds = two_cores
    assert not machine.start().provisional
    assert not is_provisional(file)


def test_a_provisional_curve_that_was_corrected_and_saved_is_profiled_again(file: Path) -> None:
    machine = Machine(two_cores, others=0.5)
    cost = machine.start()
    for number in range(400):
        cost.update(64 if number % 2 else 1, two_cores(64 if number % 2 else 1))
    cost_cache.save_corrected("curve", cost)
    assert is_provisional(file)
    machine.others = 0.0
    machine.start()
    assert machine.has_profiled()


def test_a_disturbed_check_makes_a_curve_provisional_instead_of_replacing_it(file: Path) -> None:
    Machine(two_cores).start()
    busy = Machine(one_core, others=0.5)
    cost = busy.start()
    assert not busy.has_profiled()
    assert cost.provisional
    assert is_provisional(file)
    assert cost.at(17) / cost.at(16) == pytest.approx(two_cores(17) / two_cores(16))
    busy.others = 0.0
    assert not busy.start().provisional
    assert busy.has_profiled()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows": [1, 2], "bands": {"0": [1.0]}}'])
def test_an_unreadable_file_is_profiled_anew(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    machine = Machine(two_cores)
    machine.start()
    assert machine.has_profiled()
    assert not is_provisional(file)


@pytest.mark.parametrize(("curve", "is_kept"), [(two_cores, True), (one_core, False)])
def test_a_file_of_an_earlier_version_is_checked_too(
    file: Path, curve: Callable[[int], float], is_kept: bool
) -> None:
    sizes = profile_sizes(64)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"rows": sizes, "bands": {"0": [curve(rows) for rows in sizes]}}))
    machine = Machine(two_cores)
    machine.start()
    assert machine.has_profiled() != is_kept


def test_a_check_fits_into_its_time_and_into_the_rows_of_the_engine() -> None:
    sizes = profile_sizes(1024)
    slow = StepCost(sizes, [0.05 * (1 + 0.02 * rows) for rows in sizes])
    chosen = check_sizes(slow, 1024)
    assert chosen[:3] == [1, 16, 17]
    assert len(chosen) == 4
    assert CHECK_REPEATS * sum(slow.at(rows) for rows in chosen) <= CHECK_SECONDS
    assert check_sizes(StepCost(sizes, [1e-4 * (1 + rows) for rows in sizes]), 1024) == [1, 16, 17, 1024]
    assert max(check_sizes(slow, 40)) <= 40
    assert check_sizes(slow, 8) == [1, 2, 8]
    stairs = profile_sizes(64, [8])
    assert check_sizes(StepCost(stairs, [0.001 * -(-rows // 8) for rows in stairs]), 64) == [1, 8, 9, 64]
