"""vLLM in a process of its own, which prints what it has to say after the word ANSWER."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def ask(program: str | Path, *args: str | Path, **environment: str) -> Any:
    """Run a program that starts an engine, and return the JSON that it answers with.

    A program in a file may start processes of its own.
    """
    alone = {} if isinstance(program, Path) else {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    finished = subprocess.run(
        [sys.executable, *(["-c"] if isinstance(program, str) else []), program, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", **alone, **environment},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(line.removeprefix("ANSWER "))
