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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "forerun" / "costs" / "curve.json"


def test_files_without_the_profiled_curve_and_the_mark_are_readable(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text('{"rows": [1.0, 2.0, 4.0], "bands": {"0": [1.0, 1.5, 2.0], "3": [2.0, 3.0, 4.0]}}')
    cost = cost_cache.load("curve")
    assert cost is not None
    assert cost.profiled.tolist() == [1.0, 1.5, 2.0]
    assert not cost.provisional
    assert cost.at(4, 50_000) / cost.at(4) == pytest.approx(2.0)


@pytest.mark.parametrize("profiled", ["[1.0]", "[1.0, 0.0]", '"1.0"', "null", "{}"])
def test_an_unreadable_profiled_curve_is_a_miss(cache: Path, profiled: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(f'{{"rows": [1.0, 2.0], "profiled": {profiled}, "bands": {{"0": [1.0, 1.5]}}}}')
    assert cost_cache.load("curve") is None


@pytest.mark.parametrize(
    "curve",
    ['{"rows": [1.0, 2.0], "bands": []}', '{"rows": [1.0, -2.0], "bands": {"0": [1.0, 1.5]}}', "[]", "7"],
)
def test_a_curve_of_another_form_is_a_miss(cache: Path, curve: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(curve)
    assert cost_cache.load("curve") is None


@pytest.mark.parametrize("provisional", [False, True])
def test_saving_a_corrected_curve_keeps_its_mark(cache: Path, provisional: bool) -> None:
    cost_cache.save("curve", StepCost((1, 2, 4), (1.0, 1.5, 2.0), provisional=provisional))
    for _ in range(3):  # three starts
        cost = cost_cache.load("curve")
        assert cost is not None
        assert cost.provisional == provisional
        for number in range(200):
            cost.update(1 + 3 * (number % 2), 1.0 + 3.0 * (number % 2))
        assert cost_cache.save_corrected("curve", cost) == cache
        assert cost.profiled.tolist() == [1.0, 1.5, 2.0]
    saved = cost_cache.load("curve")
    assert saved is not None
    assert saved.at(4) / saved.at(1) > 3.0, "corrections are saved"


def test_a_corrected_curve_does_not_replace_a_newer_profile(cache: Path) -> None:
    stale = StepCost((1, 2, 4), (1.0, 1.0, 1.0), provisional=True)
    cost_cache.save("curve", stale)
    cost_cache.save("curve", StepCost((1, 2, 4), (1.0, 1.5, 2.0)))
    assert cost_cache.save_corrected("curve", stale) is None
    kept = cost_cache.load("curve")
    assert kept is not None
    assert kept.profiled.tolist() == [1.0, 1.5, 2.0]
    assert not kept.provisional
    cache.unlink()
    assert cost_cache.save_corrected("curve", stale) == cache, "a deleted file is written again"
