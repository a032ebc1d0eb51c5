"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

import pytest

from forerun.bench.record import BenchRecord
from unit.bench.made_records import FACTS, answer, case


@pytest.fixture
def record() -> BenchRecord:
    """forerun emits four tokens per event where vLLM emits one, and an event takes a quarter longer."""
    found = BenchRecord(runs=[FACTS], costs={(0, False): {1: 0.02, 8: 0.025}})
    for number in range(4):
        slowdown = 1.0 + 0.5 * number  # of the machine, the same for all systems
        found.add(answer("vllm", case(number), pause=0.02 * slowdown))
        found.add(answer("forerun", case(number), pause=0.025 * slowdown, per_event=4))
        found.add(answer("llama.cpp", case(number), pause=0.005 * slowdown))
    return found
