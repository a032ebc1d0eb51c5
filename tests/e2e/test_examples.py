"""Examples that start an engine, and the output that the documents show for the real model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.engines import SINGLE_PROCESS, run_program

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


def test_the_python_example_generates_identical_output(smollm2: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    script = ROOT / "examples" / "serving" / "from_python.py"
    printed = subprocess.run(
        [sys.executable, script, smollm2],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | SINGLE_PROCESS,
    )
    assert "identical output without draft tokens: True" in printed.stdout, printed.stderr[-2000:]


def test_the_corpus_example_drafts_from_documents(smollm2: Path) -> None:
    script = ROOT / "examples" / "local" / "corpus.py"
    printed = subprocess.run(
        [sys.executable, script, smollm2, ROOT / "docs" / "quickstart.md", ROOT / "docs" / "local.md"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"([\d.]+) tokens per step; identical output: (\w+)", printed.stdout)
    assert found, printed.stderr[-2000:]
    assert found[2] == "True"
    assert float(found[1]) > 1.2


def test_the_output_shown_in_documents_is_the_output_of_the_code(smollm2: Path) -> None:
    documents = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    blocks = (re.findall(r"```python\n(.*?)```", each.read_text(), flags=re.DOTALL) for each in documents)
    codes = sorted({code for some in blocks for code in some if '"MODEL"' in code})
    expected = [re.findall(r"^print\(.*\)  # (\[.*\])$", code, flags=re.MULTILINE) for code in codes]
    runnable = [code.replace('"MODEL"', repr(str(smollm2))) for code in codes]
    assert run_program("documented_code", json.dumps(runnable)) == expected
    assert sum(map(len, expected)) >= 4
