"""The questions of tests/data: all categories of Spec-Bench and code editing."""

from __future__ import annotations

import json
import os
from itertools import zip_longest
from pathlib import Path

FILE = Path(__file__).parents[1] / "data" / "questions.jsonl"

FULL = os.environ.get("FORERUN_E2E_IDENTITY") == "full"
"""Whether identity tests use 40 questions and, in the local engine, all combinations (about an hour)."""


def read_questions(num: int) -> list[str]:
    """The first `num` questions, taken from all categories in turn."""
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    categories = sorted({row["cat"] for row in rows})
    by_category = [[row["text"] for row in rows if row["cat"] == name] for name in categories]
    return [text for turn in zip_longest(*by_category) for text in turn if text][:num]
