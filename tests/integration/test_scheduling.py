"""Engine tests that have servers in common run in one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "e2e" / "conftest.py"
NUM_FILES = 6
SOURCE = """import os
from pathlib import Path


def test_one():
    Path(__file__ + os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def test_a_worker_runs_all_files_of_a_subfolder(tmp_path: Path) -> None:
    folder = tmp_path / "e2e"
    (folder / "serve").mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    for number in range(NUM_FILES):
        (folder / f"test_file_{number}.py").write_text(SOURCE)
        (folder / "serve" / f"test_serve_{number}.py").write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-c", os.devnull]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    files = list(folder.rglob("test_*.pygw*"))
    assert len(files) == 2 * NUM_FILES
    assert len({file.suffix for file in files if file.parent.name == "serve"}) == 1
