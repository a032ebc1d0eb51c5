"""vLLM in a process of its own, which prints what it has to say after the word ANSWER."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def ask(program: str, *args: str | Path) -> Any:
    """Run a program that starts an engine, and return the JSON that it answers with."""
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    finished = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, check=False, env=environment
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(line.removeprefix("ANSWER "))
