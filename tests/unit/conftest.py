"""Unit tests run without an engine: they load neither vLLM nor transformers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def loaded_engines() -> list[str]:
    return [name for name in ("vllm", "transformers") if name in sys.modules]


@pytest.fixture(scope="session", autouse=True)
def modules_without_engine(request: pytest.FixtureRequest) -> None:
    """Fail if a test module imports an engine, which takes longer than all other imports together."""
    if all(Path(__file__).parent in item.path.parents for item in request.session.items):
        assert not loaded_engines(), "a test module that imports an engine belongs in tests/integration"


@pytest.fixture(autouse=True)
def without_engine() -> Iterator[None]:
    """Fail a test that loads an engine."""
    before = loaded_engines()
    yield
    assert loaded_engines() == before, "a test that loads an engine belongs in tests/integration"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like a model's, with a cache directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    return directory
