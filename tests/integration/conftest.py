"""Fixtures of tests with an engine: a tiny random model."""

from __future__ import annotations

from typing import Any

import pytest

from random_models import random_llama


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """A random float32 Llama with a vocabulary of 16: fast, with output that is hard to predict."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return random_llama(16, (32, 64), (4, 2), max_length=256, spread=0.4)
