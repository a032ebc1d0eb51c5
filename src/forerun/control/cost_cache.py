"""Cache on disk of measured step-cost curves, keyed by machine and model."""

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

import numpy as np

from forerun.control.step_cost import StepCost


def cache_key(**facts: Any) -> str:
    """Digest of everything that the curve depends on, this machine included."""
    everything = json.dumps({**facts, "machine": _machine()}, sort_keys=True, default=str)
    return hashlib.sha256(everything.encode()).hexdigest()[:32]


def load(key: str) -> StepCost | None:
    """Read a cached curve; None if there is none or it is unreadable."""
    try:
        return StepCost.from_dict(json.loads(cache_path(key).read_text(encoding="utf-8")))
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        # no home is a RuntimeError, a damaged file any of the others
        return None


def save(key: str, cost: StepCost) -> Path | None:
    """Write a curve atomically; returns the file, None if the cache directory is not writable."""
    with suppress(OSError, RuntimeError):
        file = cache_path(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as part:
            json.dump(cost.to_dict(), part)
        os.replace(part.name, file)
        return file
    return None


def save_corrected(key: str, cost: StepCost) -> Path | None:
    """Write a curve that steps have corrected; returns the file, None if nothing was written.

    A provisional curve stays provisional. If another process has profiled anew since, its curve is kept.
    """
    kept = load(key)
    if kept is not None and not np.array_equal(kept.profiled, cost.profiled):
        return None
    return save(key, cost)


def cache_path(key: str) -> Path:
    """File of the curve with this key."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "forerun" / "costs" / f"{key}.json"


def _machine() -> list[Any]:
    """CPU model and core count, which determine speed as far as can be known without querying a device."""
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        return [found[1] if found else platform.machine(), os.cpu_count()]
    return [platform.machine(), os.cpu_count()]
