"""Examples that start an engine of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


def test_the_example_from_python(smollm2: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    script = ROOT / "examples" / "serving" / "from_python.py"
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    printed = subprocess.run(
        [sys.executable, script, smollm2], capture_output=True, text=True, check=False, env=environment
    )
    assert "the same words without guesses: True" in printed.stdout, printed.stderr[-2000:]
