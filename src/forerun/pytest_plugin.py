"""Fixtures and options for pytest; `forerun.testing` has the assertion."""

from __future__ import annotations

import os
from typing import Any

import pytest

_SERVERS = {"candidate": "the server under test", "baseline": "the same server without speculation"}


def pytest_addoption(parser: Any) -> None:
    """Add the options of the fixtures."""
    group = parser.getgroup("forerun", "servers to test for losslessness")
    for name, what in _SERVERS.items():
        group.addoption(
            f"--forerun-{name}", metavar="URL", help=f"{what}; or the variable FORERUN_{name.upper()}"
        )


def _url(config: Any, name: str) -> str | None:
    return config.getoption(f"--forerun-{name}") or os.environ.get(f"FORERUN_{name.upper()}")


@pytest.fixture(scope="session")
def forerun_candidate(pytestconfig: Any) -> str:
    """The URL of the server under test; tests that use it are skipped without one."""
    url = _url(pytestconfig, "candidate")
    if url is None:
        pytest.skip("give --forerun-candidate URL, or set FORERUN_CANDIDATE")
    return url


@pytest.fixture(scope="session")
def forerun_baseline(pytestconfig: Any) -> str | None:
    """The URL of the server without speculation, or None."""
    return _url(pytestconfig, "baseline")
