"""Engine tests that have servers in common run in one worker, and the longest start first."""

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
    with (Path(__file__).parent / "order.txt").open("a") as order:
        order.write(Path(__file__).stem + "\\n")
"""


def run_engine_tests(folder: Path, num_workers: int) -> None:
    """Run the files of a folder as engine tests."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    command = [sys.executable, "-m", "pytest", "-n", f"{num_workers}", "--dist", "loadfile", "-c", os.devnull]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder.parent), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_worker_runs_all_files_of_a_subfolder(tmp_path: Path) -> None:
    folder = tmp_path / "e2e"
    (folder / "serve").mkdir(parents=True)
    for number in range(NUM_FILES):
        (folder / f"test_file_{number}.py").write_text(SOURCE)
        (folder / "serve" / f"test_serve_{number}.py").write_text(SOURCE)
    run_engine_tests(folder, num_workers=2)
    files = list(folder.rglob("test_*.pygw*"))
    assert len(files) == 2 * NUM_FILES
    assert len({file.suffix for file in files if file.parent.name == "serve"}) == 1


def test_the_longest_files_start_first_and_files_with_a_common_engine_follow_each_other(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "e2e"
    folder.mkdir()
    names = ["test_a_short_file", "test_bench", "test_v2_heads", "test_v2_parity"]
    for name in names:
        (folder / f"{name}.py").write_text(SOURCE)
    run_engine_tests(folder, num_workers=1)
    assert (folder / "order.txt").read_text().split() == [*names[2:], "test_bench", "test_a_short_file"]
