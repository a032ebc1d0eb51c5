"""Curves that were measured, kept for the next start on the same machine with the same model."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.control.step_cost import StepCost


def cache_key(**facts: Any) -> str:
    """The name of a curve: a digest of what it depends on, this machine included."""
    everything = json.dumps({**facts, "machine": _machine()}, sort_keys=True, default=str)
    return hashlib.sha256(everything.encode()).hexdigest()[:32]


def load(name: str) -> StepCost | None:
    """The curve of this name, if there is one that can be read."""
    try:
        return StepCost.from_dict(json.loads(path_of(name).read_text(encoding="utf-8")))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # no home is a RuntimeError
        return None


def save(name: str, cost: StepCost) -> Path | None:
    """Write a curve, whole or not at all; returns the file, None if the cache directory is not writable."""
    with suppress(OSError, RuntimeError):
        file = path_of(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as part:
            json.dump(cost.to_dict(), part)
        os.replace(part.name, file)
        return file
    return None


def path_of(name: str) -> Path:
    """The file of the curve of this name."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "forerun" / "costs" / f"{name}.json"


def _machine() -> list[Any]:
    """What makes one machine faster than another, as far as it can be told without asking a device."""
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        return [found[1] if found else platform.machine(), os.cpu_count()]
    return [platform.machine(), os.cpu_count()]
