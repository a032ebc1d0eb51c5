"""Provenance of a measurement: command, commit, versions and machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def provenance(command: str, packages: Sequence[str], threads: int | None = None) -> dict[str, Any]:
    """The facts of a record. The commit is none unless forerun runs from a git checkout."""
    return {
        "command": command,
        "commit": _commit(),
        "versions": {name: found for name in packages if (found := installed_version(name))},
        "python": platform.python_version(),
        "machine": {"cpu": _processor(), "threads": threads or os.cpu_count()},
    }


def _commit() -> str | None:
    git = ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def installed_version(name: str) -> str | None:
    """The version of a package, or none if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The CPU model and its widest low-precision instruction set, on which the cost of a row depends."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    model = re.search(r"model name\s*: (.*)", text)
    flags = re.search(r"flags\s*: (.*)", text)
    known = [name for name in ("amx_bf16", "avx512_bf16", "avx512f") if flags and name in flags[1].split()]
    return " ".join(filter(None, [model[1] if model else platform.machine(), *known[:1]]))
