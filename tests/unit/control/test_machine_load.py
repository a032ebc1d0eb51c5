"""CPU time of others during a measurement: steal time, and processes of other process groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from forerun.control import machine_load
from forerun.control.machine_load import CpuSnapshot, CpuTicks, LoadShares

WHOLE = "cpu  100 5 20 300 2 1 2 70 9 9\n"


class Kernel:
    """A made-up /proc with two CPUs and some processes: their groups and CPU time."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        (proc / "self" / "task" / "1").mkdir(parents=True)
        (proc / "cpuinfo").touch()

    def cpus(self, **ticks: tuple[int, int, int]) -> None:
        """Ticks in use, idle and stolen of each CPU; the first line has their sums."""
        busy, idle, steal = (sum(column) for column in zip(*ticks.values(), strict=True))
        every = {"cpu": (busy, idle, steal), **ticks}
        lines = [f"{name} {busy} 0 0 {idle} 0 0 0 {steal} 0 0" for name, (busy, idle, steal) in every.items()]
        (self.proc / "stat").write_text("\n".join([*lines, "intr 5 1", "ctxt 8"]))

    def processes(self, groups: Mapping[int, int], **ticks: int) -> None:
        """Each process by its number `p1`, `p2`, ... with its ticks, half of them in kernel mode."""
        for name, spent in ticks.items():
            number = int(name[1:])
            (self.proc / str(number)).mkdir(exist_ok=True)
            fields = f"S 1 {groups[number]} 1 0 -1 0 0 0 0 0 {spent - spent // 2} {spent // 2} 7 7 20 0"
            (self.proc / str(number) / "stat").write_text(f"{number} (a) b (c) {fields}")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(machine_load, "PROC", tmp_path)
    monkeypatch.setattr(os, "getpgrp", lambda: 40)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return Kernel(tmp_path)


def test_the_steal_share_comes_from_the_kernel_counters(kernel: Kernel) -> None:
    stat = kernel.proc / "stat"
    assert CpuTicks.now() == CpuTicks(0, 0), "no /proc/stat"
    stat.write_text(WHOLE + "cpu0 1 1 1 1 1 1 1 1 0 0\n")
    before = CpuTicks.now()
    assert before == CpuTicks(70, 500, 128)
    stat.write_text("cpu  150 5 20 310 2 1 2 110 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert CpuTicks.now().steal_share_since(before) == pytest.approx(40 / 100)
    assert before.steal_share_since(before) == 0.0


def test_cpu_time_of_other_groups_is_counted_and_that_of_the_own_group_is_not(kernel: Kernel) -> None:
    groups = {1: 40, 2: 40, 3: 99}
    kernel.cpus(cpu0=(1000, 0, 0), cpu1=(1000, 0, 0))
    kernel.processes(groups, p1=100, p2=200, p3=300)
    before = CpuSnapshot.now()
    kernel.cpus(cpu0=(1090, 0, 10), cpu1=(1060, 40, 0))
    kernel.processes(groups, p1=150, p2=230, p3=370)
    assert CpuSnapshot.now().shares_since(before) == LoadShares(steal=10 / 200, others=70 / 200)


def test_cpu_time_of_a_process_that_left_the_group_counts_as_that_of_others(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpgrp", lambda: 41)
    groups = {1: 40, 2: 41}
    kernel.cpus(cpu0=(1000, 0, 0))
    kernel.processes(groups, p1=0, p2=0)
    before = CpuSnapshot.now()
    kernel.cpus(cpu0=(1100, 0, 0))
    kernel.processes(groups, p1=80, p2=20)
    shares = CpuSnapshot.now().shares_since(before)
    assert shares.others == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("in_use", "engine", "others"),
    [
        ((100, 100), 100, 0.0),  # the engine waits on the other CPU
        ((100, 60), 90, 0.0),  # and a third of it here
        ((100, 100), 0, 0.0),  # another process on the other CPU does not matter
        ((100, 100), 20, 0.0),
        ((140, 60), 60, 0.4),  # another process here
    ],
)
def test_only_cpus_that_this_process_may_use_are_counted(
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
    in_use: tuple[int, int],
    engine: int,
    others: float,
) -> None:
    """A worker bound to one CPU, and an engine process that may use both and waits in a busy loop."""
    worker = min(100, in_use[0]) - max(0, engine - in_use[1])
    affinity = {0: {0}, 1: {0}, 2: {0, 1}}
    monkeypatch.setattr(os, "sched_getaffinity", affinity.__getitem__)
    groups = {1: 40, 2: 40}

    def run(times: int) -> None:
        here, elsewhere = (times * ticks for ticks in in_use)
        kernel.cpus(cpu0=(here, 0, 0), cpu1=(elsewhere, 0, 0))
        kernel.processes(groups, p1=times * worker, p2=times * engine)

    run(1)
    before = CpuSnapshot.now()
    run(2)
    shares = CpuSnapshot.now().shares_since(before)
    assert shares.others == pytest.approx(others * 100 / in_use[0])


def test_processes_that_start_or_end_in_between_do_not_matter(kernel: Kernel) -> None:
    groups = {1: 40, 2: 40}
    kernel.cpus(cpu0=(0, 0, 0))
    kernel.processes(groups, p1=500)
    before = CpuSnapshot.now()
    (kernel.proc / "1" / "stat").unlink()
    kernel.cpus(cpu0=(60, 40, 0))
    kernel.processes(groups, p2=60)
    assert CpuSnapshot.now().shares_since(before) == LoadShares()


def shares_of_a_few_ticks_count_as_zero(kernel: Kernel) -> None:
    kernel.cpus(cpu0=(0, 0, 0))
    before = CpuSnapshot.now()
    kernel.cpus(cpu0=(9, 0, 9))
    assert CpuSnapshot.now().shares_since(before) == LoadShares()
    kernel.cpus(cpu0=(10, 0, 10))
    assert CpuSnapshot.now().shares_since(before) == LoadShares(0.5, 0.5)


def test_without_proc_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "PROC", tmp_path / "missing")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    before = CpuSnapshot.now()
    assert CpuSnapshot.now().shares_since(before) == LoadShares()


@pytest.fixture(params=[True, False], ids=["another group", "own group"])
def busy_process(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], bool]]:
    """A busy loop, in a process group of its own or in that of this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], start_new_session=bool(request.param)
    )
    yield process, request.param
    process.kill()
    process.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_real_busy_process_counts_unless_it_is_in_the_own_group(
    busy_process: tuple[subprocess.Popen[bytes], bool],
) -> None:
    process, is_other = busy_process
    number = str(process.pid)
    assert (number in {**CpuSnapshot.now().bound, **CpuSnapshot.now().floating}) != is_other

    def spent() -> int:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before, began = CpuSnapshot.now(), spent()
    while spent() < began + 50:
        time.sleep(0.02)
    after = CpuSnapshot.now()
    if is_other:
        total = after.ticks.total - before.ticks.total
        assert after.shares_since(before).others > 0.5 * 50 / total, "ticks are sampled: half must be seen"
    else:
        assert after.bound[number] - before.bound[number] >= 50
