"""In CI a skipped test fails; elsewhere it is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

ONE_TEST = "import pytest\n\ndef test_skipped() -> None:\n    pytest.skip('missing')\n"
MODULE = "import pytest\n\npytest.importorskip('no_such_module')\n"


@pytest.mark.parametrize("source", [ONE_TEST, MODULE], ids=["test", "module"])
@pytest.mark.parametrize("in_ci", [True, False])
def test_a_skip_fails_in_ci_alone(tmp_path: Path, source: str, in_ci: bool) -> None:
    (tmp_path / "test_it.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    environment.pop("FORERUN_CI", None)
    if in_ci:
        environment["FORERUN_CI"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ("skipped in CI" in done.stdout) == in_ci, done.stdout
    assert (done.returncode in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)) == in_ci
