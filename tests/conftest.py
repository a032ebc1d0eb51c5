"""Fixtures of all tests: one core per worker, and the real model's directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
IN_CI = "FORERUN_CI" in os.environ
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

settings.register_profile("forerun", deadline=None)  # the first call compiles, and machine speed varies
settings.load_profile("forerun")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FORERUN_BUILD_TABLES", "0")  # a build in the background would take a core
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # every engine would inspect the machine to report it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a skipped test fails: everything that a test needs is there."""
    report = yield
    if report.skipped and IN_CI and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, a skipped module fails."""
    report = yield
    if report.skipped and IN_CI:
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def own_core(worker_id: str) -> None:
    """Pin each worker to one core, which its engines and servers inherit: engines that compete for cores are
    far slower than engines with a core each. A run without workers uses all cores.
    """
    if worker_id != "master" and CORES:
        number = int(worker_id.removeprefix("gw"))
        os.sched_setaffinity(0, {sorted(CORES)[number % len(CORES)]})


@pytest.fixture
def all_cores() -> Iterator[None]:
    """Lift the pinning, for engines whose ranks need a core each."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The directory of the real model, converted on first use."""
    script = ROOT / "scripts" / "models.py"
    converted = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return Path(converted.stdout.splitlines()[-1])
