"""`forerun selftest --quick` with real servers: stock vLLM and `forerun serve` on the V1 runner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from v2_bench.models import write_target, write_tokenizer

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytestmark = pytest.mark.e2e

FLAGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"]


def test_a_quick_selftest_passes_and_writes_a_report(tmp_path: Path) -> None:
    model, page = tmp_path / "tiny", tmp_path / "report.md"
    write_tokenizer(model)
    write_target(model)
    command = [sys.executable, "-m", "forerun", "selftest", str(model), "--quick", "--json", "-o", str(page)]
    found = subprocess.run([*command, "--", *FLAGS], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:] + found.stdout[-3000:]
    values = json.loads(found.stdout)
    checks = {each["name"]: each for each in values["checks"]}
    for kind, num_outputs in (("greedy", 4), ("seeded", 8)):
        check = checks[f"identical output, {kind}, float32"]
        assert check["verdict"] == "pass", check
        assert check["num_identical"] == check["num_outputs"] == num_outputs
        assert check["num_accepted"] > 0
    mode = {"runner": "V1", "scheduling": "sync", "dtype": "float32"}
    assert values["modes"] == {"stock vLLM": mode, "forerun": mode}
    cells = checks["throughput against stock"]["cells"]
    assert [(cell["concurrency"], cell["num_identical"]) for cell in cells] == [(1, 4), (4, 4)]
    assert all(cell["tokens_per_step"] >= 1 for cell in cells)
    text = page.read_text()
    assert "| identical output, seeded, float32 | pass |" in text
    assert str(tmp_path) not in text
