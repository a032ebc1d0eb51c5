"""SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))


def has_test(file: str, name: str) -> bool:
    path = ROOT / file
    return path.exists() and f"def {name}(" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_named_test_exists(file: str, name: str) -> None:
    assert has_test(file, name)


def test_a_missing_test_is_noticed() -> None:
    assert len(NAMED) > 50
    assert not has_test("tests/unit/test_security.py", "test_that_does_not_exist")
    assert not has_test("tests/unit/test_no_file.py", "test_a_missing_test_is_noticed")
