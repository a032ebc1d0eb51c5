"""`forerun bench` with real contestants, each held to its own plain one, and `forerun tune` with a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytestmark = pytest.mark.e2e


def test_everybody_says_what_its_plain_one_says(smollm2: Path, tmp_path: Path) -> None:
    """With contestants that start quickly; what starts a vLLM is tried below and in the tests of serving."""
    record = tmp_path / "bench.jsonl"
    words = ["--prompts", "2", "--tokens", "24", "--dtype", "float32", "-o", str(record), "--json"]
    words += ["--only", "--against", "transformers-lookup"]
    command = [
        sys.executable,
        "-m",
        "forerun",
        "bench",
        "run",
        "code-editing",
        "--model",
        str(smollm2),
        *words,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    results = {each["who"]: each for each in json.loads(found.stdout)}
    assert set(results) == {"transformers", "transformers-lookup"}
    looking = results["transformers-lookup"]
    assert looking["sound"], looking
    assert looking["words"]["same"] == looking["words"]["num"] == 2
    line = looking["by_category"]["all of them"]
    assert line["tokens_per_step"] > 1.0
    assert line["guesses_per_step"] > 1.0
    assert line["first_token"][0] > 0
    page = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "forerun", "bench", "report", record, "-o", page], check=True)
    assert "transformers-lookup" in page.read_text()


def test_what_to_use_is_said_and_can_be_served(smollm2: Path, tmp_path: Path) -> None:
    config, page = tmp_path / "speculation.json", tmp_path / "page.html"
    words = ["--prompts", "code-editing", "--num", "4", "--tokens", "48", "--dtype", "float32", "--json"]
    command = [sys.executable, "-m", "forerun", "tune", str(smollm2), *words]
    command += ["-o", str(config), "--page", str(page)]
    command += ["--", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "16"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    told = json.loads(found.stdout)
    assert told["vllm_flags"][-5:] == command[-5:]
    assert told["plain_speed"] > 0
    assert len(told["predictions"]) == 3
    assert all(each["tokens_per_step"] > 1.2 for each in told["predictions"]), "code that is copied repeats"
    if told["measured"]:  # which depends on what passes cost on the day
        assert told["measured"]["same"] == told["measured"]["num"] == 4
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
