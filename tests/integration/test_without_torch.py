"""The base install has no torch: commands that need no tensors run, the others name the extra to install.

Each command runs in a process whose import system finds neither torch nor the packages that depend on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.audit.exact.kernel_checks import KERNEL_CLAIMS
from zoo.server import ZooServer, run_server

ROOT = Path(__file__).parents[2]

PROGRAMS = Path(__file__).parent / "programs"
SMALL_EXACT_AUDIT = str(PROGRAMS / "small_exact_audit.py")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PROGRAMS / "base_install"), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of 16 tokens whose most likely token is the number of tokens so far."""

    def logits(text: tuple[int, ...]) -> np.ndarray:
        return np.where(np.arange(16) == len(text) % 16, 4.0, 0.0)

    with run_server(ZooServer(logits, logits)) as address:
        yield address


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def forerun(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(environment, "-m", "forerun", *arguments)


def test_torch_is_hidden(environment: dict[str, str]) -> None:
    found = python(environment, "-c", "import torch")
    assert "ModuleNotFoundError: No module named 'torch'" in found.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("theory", "--json"),
        ("simulate", "laptop", "--replicas", "1", "--json"),
        ("replay", "{transcripts}", "--drafter", "suffix", "--json"),
        ("replay", "{transcripts}", "--drafter", "ngram", "--json"),
        ("bench", "report", str(ROOT / "docs" / "records" / "bench-eight.jsonl"), "--json"),
        ("doctor", "--json"),
    ],
    ids=lambda command: "-".join(each for each in command[:4] if "/" not in each),
)
def test_commands_without_tensors_run(
    environment: dict[str, str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    transcripts = tmp_path / "transcripts.jsonl"
    lines = (ROOT / "tests" / "data" / "transcripts.jsonl").read_text().splitlines()
    transcripts.write_text("\n".join(lines[:2]) + "\n")
    found = forerun(environment, *(each.format(transcripts=transcripts) for each in command))
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)


def test_the_exact_audit_proves_the_verifiers_and_reports_rows_not_run(
    environment: dict[str, str],
) -> None:
    found = python(environment, SMALL_EXACT_AUDIT, "--json")
    assert found.returncode == 0, found.stderr
    report: dict[str, Any] = json.loads(found.stdout)
    kernels = {row["name"]: row for row in report["rows"] if row["kind"] == "kernel"}
    assert report["not_run"] == list(kernels) == list(KERNEL_CLAIMS)
    assert {row["agrees"] for row in kernels.values()} == {None}
    assert all("needs torch" in row["finding"] for row in kernels.values())
    proved = [row for row in report["rows"] if row["kind"] != "kernel"]
    assert {row["kind"] for row in proved} >= {"lossless", "mutant"}
    assert all(row["finding"] in ("equal", "bounded", "caught") for row in proved)
    assert sum(row["outcomes"] for row in proved) == report["num_samples"] > 1000
    assert "not run" in report["reason"]


def test_the_table_of_the_exact_audit_shows_the_rows_not_run(environment: dict[str, str]) -> None:
    found = python(environment, SMALL_EXACT_AUDIT)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("not run: needs torch") == len(KERNEL_CLAIMS)
    assert "not run" in found.stdout.splitlines()[-1]


SERVER_AUDITS = [
    ("greedy", "--num-prompts", "2"),
    ("seeded", "--num-prompts", "1", "--num-seeds", "1", "--epsilon", "0.01"),
    ("sampled", "--num-samples", "16", "--settings", "temperature 1", "--epsilon", "0.01"),
]


@pytest.mark.parametrize("audit", SERVER_AUDITS, ids=lambda audit: audit[0])
def test_audits_of_one_server_against_another_run(
    environment: dict[str, str], url: str, tmp_path: Path, audit: tuple[str, ...]
) -> None:
    keep = ("--keep", str(tmp_path / "samples.jsonl")) if audit[0] == "sampled" else ()
    found = forerun(
        environment,
        "audit",
        *audit,
        *keep,
        "--baseline",
        url,
        "--candidate",
        url,
        "--max-tokens",
        "2",
        "--json",
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["verdict"] == "no difference found"


@pytest.mark.parametrize("audit", SERVER_AUDITS[1:], ids=lambda audit: audit[0])
def test_rounding_measurement_names_the_extra_and_the_option(
    environment: dict[str, str], url: str, tmp_path: Path, audit: tuple[str, ...]
) -> None:
    keep = ("--keep", str(tmp_path / "samples.jsonl")) if audit[0] == "sampled" else ()
    found = forerun(
        environment, "audit", *audit[:-2], *keep, "--baseline", url, "--candidate", url, "--max-tokens", "2"
    )
    assert found.returncode == 2
    assert "[torch]" in found.stdout + found.stderr
    assert "--epsilon" in found.stdout + found.stderr
    assert "Traceback" not in found.stderr


NEEDS_TORCH = {
    "import forerun; forerun.LLM": "local",
    "import forerun.models.reference": "local",
    "from forerun.drafters.draft_model import ModelDrafter": "local",
    "from forerun.core.tensors import torch; torch.zeros(1)": "torch",
    "import numpy as np; from forerun import RequestView; from forerun.drafters.ngram import NgramDrafter;"
    " NgramDrafter(rng=np.random.default_rng(0), vocab_size=8)"
    ".propose([RequestView('a', [1, 2, 1, 2, 1])], [2])": "torch",
}


@pytest.mark.parametrize(("program", "extra"), NEEDS_TORCH.items(), ids=lambda text: text[:40])
def test_code_that_needs_torch_names_the_extra(environment: dict[str, str], program: str, extra: str) -> None:
    found = python(environment, "-c", program)
    assert found.returncode == 1
    assert "MissingExtra" in found.stderr.splitlines()[-1]
    assert "torch" in found.stderr.splitlines()[-1]
    assert f"[{extra}]" in found.stderr.splitlines()[-1]


def test_audits_against_a_server_need_no_transformers() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None;"
        "import forerun.audit.sampled.preparation, forerun.audit.parity.run;"
        "import forerun.audit.parity.divergence_rate, forerun.cli.audit.sampled, forerun.cli.audit.greedy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
