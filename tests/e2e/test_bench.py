"""`forerun bench` with real systems, each compared with its baseline, and `forerun tune` with a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytestmark = pytest.mark.e2e


def test_each_system_has_the_output_of_its_baseline(smollm2: Path, tmp_path: Path) -> None:
    """Uses systems that start quickly; other tests start vLLM."""
    record = tmp_path / "bench.jsonl"
    arguments = [
        "--num-prompts",
        "2",
        "--max-tokens",
        "24",
        "--dtype",
        "float32",
        "-o",
        str(record),
        "--json",
    ]
    arguments += ["--only", "--against", "transformers-lookup"]
    command = [
        sys.executable,
        "-m",
        "forerun",
        "bench",
        "run",
        "code-editing",
        "--model",
        str(smollm2),
        *arguments,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    results = {each["system"]: each for each in json.loads(found.stdout)}
    assert set(results) == {"transformers", "transformers-lookup"}
    lookup = results["transformers-lookup"]
    assert lookup["is_valid"], lookup
    assert lookup["output"]["num_identical"] == lookup["output"]["num"] == 2
    line = lookup["by_category"]["geo. mean"]
    assert line["tokens_per_step"] > 1.0
    assert line["draft_tokens_per_step"] > 1.0
    assert line["ttft"][0] > 0
    page = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "forerun", "bench", "report", record, "-o", page], check=True)
    assert "transformers-lookup" in page.read_text()


def test_the_recommendation_can_be_served(smollm2: Path, tmp_path: Path) -> None:
    config, page = tmp_path / "speculation.json", tmp_path / "page.html"
    arguments = [
        "--prompts",
        "code-editing",
        "--num-prompts",
        "4",
        "--max-tokens",
        "48",
        "--dtype",
        "float32",
        "--json",
    ]
    command = [sys.executable, "-m", "forerun", "tune", str(smollm2), *arguments]
    command += ["-o", str(config), "--report", str(page)]
    command += ["--", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "16"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    advice = json.loads(found.stdout)
    assert advice["vllm_flags"][-5:] == command[-5:]
    assert advice["baseline_speed"] > 0
    assert len(advice["predictions"]) == 3
    assert all(each["tokens_per_step"] > 1.2 for each in advice["predictions"]), (
        "the outputs repeat their prompts"
    )
    if advice["measured"]:  # depends on the step costs of this machine
        assert advice["measured"]["num_identical"] == advice["measured"]["num"] == 4
    serve = [
        sys.executable,
        "-m",
        "forerun",
        "serve",
        str(smollm2),
        "--speculation",
        str(config),
        "--dry-run",
    ]
    subprocess.run(serve, check=True, capture_output=True)
    assert "<svg" in page.read_text()
