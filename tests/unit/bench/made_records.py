"""Records with known ratios, for the tests of this directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.bench.record import BenchRecord
from forerun.bench.recorded_answer import CaseKey, OutputRuling, RecordedAnswer

FACTS: dict[str, Any] = {
    "command": "forerun bench run",
    "machine": {"cpu": "a machine", "threads": 2},
    "workload": {
        "model": "tiny",
        "dtype": "bfloat16",
        "questions": ["0", "1", "2", "3"],
        "num_tokens": 32,
        "concurrencies": [1],
        "temperatures": [0.0],
    },
    "systems": {
        "vllm": {"baseline": "vllm", "precision": "bfloat16", "command": []},
        "forerun": {"baseline": "vllm", "precision": "bfloat16", "command": []},
        "llama.cpp": {"baseline": "llama.cpp", "precision": "Q4_1", "command": []},
    },
}


def case(number: int, temperature: float = 0.0, concurrency: int = 1) -> CaseKey:
    return CaseKey(0, temperature, concurrency, number, number, str(number), "chat" if number % 2 else "code")


def answer(
    system: str, at: CaseKey, *, pause: float, per_event: int = 1, num: int = 33, start: int = 0
) -> RecordedAnswer:
    """One token, then events of `per_event` tokens, `pause` seconds apart."""
    counts = [1, *[per_event] * ((num - 1) // per_event)]
    times = [0.5 + pause * step for step in range(len(counts))]
    return RecordedAnswer(
        at, system, 0.0, tuple(times), tuple(counts), sum(counts),
        tuple(range(start, start + sum(counts))), "",
        drafted_per_step=(per_event - 1,) * (len(counts) - 1),
        accepted_per_step=(per_event - 1,) * (len(counts) - 1),
    )  # fmt: skip


def sabotaged(record: BenchRecord, verdict: str, system: str = "forerun") -> BenchRecord:
    """The record with a changed answer of a system and the referee's verdict on it."""
    record = BenchRecord.merged([record])  # a copy
    changed = record.answers[case(0), system]
    record.add(replace(changed, token_ids=tuple(each + 100 for each in changed.token_ids)))
    if verdict != "undecided":
        gap = {"difference": 5.0, "near-tie": 0.1}[verdict]
        record.add(OutputRuling(case(0), system, 0, gap, 0.5))
    return record
