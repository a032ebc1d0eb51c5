"""Step-cost curves on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.control import cost_cache
from forerun.control.step_cost import StepCost


def test_curves_are_cached_across_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = cost_cache.cache_key(model="a", dtype="float32")
    assert name != cost_cache.cache_key(model="a", dtype="bfloat16")
    assert cost_cache.load(name) is None
    cost = StepCost((1, 2, 4), (1.0, 1.5, 2.0))
    cost.update(4, 3.0, context=10_000)
    cost_cache.save(name, cost)
    again = cost_cache.load(name)
    assert again is not None
    again.update(1, 1.0)
    assert again.at(4) / again.at(1) == pytest.approx(cost.at(4) / cost.at(1), rel=0.01)
    (file,) = (tmp_path / "forerun" / "costs").iterdir()
    file.write_text("{")
    assert cost_cache.load(name) is None, "an unreadable file is a miss"
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    cost_cache.save(name, cost)  # an unwritable directory is ignored
