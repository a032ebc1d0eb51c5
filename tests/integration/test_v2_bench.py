"""The set-up of the V2 test bench: only where a test asks for it, and without hiding other set-ups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from v2_bench.processes import INTERPRETER, bench_environment

pytest.importorskip("triton", reason="needs the extra `vllm`")

BACKENDS = "from triton.backends import backends; print('cpu' in backends)"
FINDERS = "import sys; print(any(type(each).__name__ == 'PatchingFinder' for each in sys.meta_path))"


def run(code: str, **environment: str) -> str:
    """What a Python process prints, started with the bench's folder on its path."""
    path = {"PYTHONPATH": str(INTERPRETER)}
    command = [sys.executable, "-c", code]
    env = {**os.environ, **path, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()


def test_a_process_without_the_variable_is_untouched() -> None:
    assert run(BACKENDS) == "False"
    assert run(FINDERS) == "False"


def test_a_process_on_the_bench_and_its_children_have_a_cpu_backend() -> None:
    in_child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BACKENDS!r}], check=True)"
    assert run(BACKENDS, **bench_environment()) == "True"
    assert run(in_child, **bench_environment()) == "True"


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.from_the_environment = True")
    paths = os.pathsep.join([str(INTERPRETER), str(tmp_path)])
    code = "import sys; print(sys.from_the_environment, len(sys.meta_path))"
    untouched = run(code, PYTHONPATH=paths)
    on_the_bench = run(code, **{**bench_environment(), "PYTHONPATH": paths})
    assert untouched.startswith("True")
    assert int(on_the_bench.split()[1]) == int(untouched.split()[1]) + 1
