"""Cells of the compatibility page that claim a test name one that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"

TESTED = ("V1", "bench")
MARKS = {*TESTED, "-", "refused", "off"}


def keys_of(file: Path, name: str) -> set[str]:
    """The string keys or items of a constant in a module, read without importing it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            value = getattr(node, "value", None)
            items = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [])
            return {str(each.value) for each in items if isinstance(each, ast.Constant)}
    raise AssertionError(f"{file.name} has no {name}")


def functions_of(file: Path) -> set[str]:
    """The functions of a module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def known_tests() -> dict[str, set[str]]:
    """The names that cells may refer to, by where they run."""
    bench = TESTS / "v2_bench"
    on_bench = keys_of(bench / "settings.py", "SETTINGS") | keys_of(bench / "settings.py", "DERIVED")
    on_bench |= functions_of(bench / "scenarios.py")
    on_v1 = keys_of(TESTS / "e2e" / "test_vllm_token_identity.py", "SETTINGS")
    for file in TESTS.rglob("test_*.py"):
        tests = {name for name in functions_of(file) if name.startswith("test_")}
        is_v1 = file.name.startswith("test_vllm_")  # V1 tests may use the bench's models
        if not is_v1 and "v2_bench" in file.read_text(encoding="utf-8"):
            on_bench |= tests
        else:
            on_v1 |= tests
    return {"V1": on_v1, "bench": on_bench}


def rows_of(page: str) -> dict[str, tuple[list[str], list[str]]]:
    """The cells of every feature, and the tests that its row names."""
    table = page.partition("| feature | V1 | V2, sync | V2, async | tests |\n")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[1:]:
        feature, *cells, tests = (cell.strip() for cell in line.strip("|").split("|"))
        found[feature] = (cells, re.findall("`([^`]+)`", tests))
    return found


def faults_of(page: str) -> list[str]:
    """Cells that claim a test without naming one that exists."""
    known = known_tests()
    found = []
    for feature, (cells, tests) in rows_of(page).items():
        found += [f"{feature}: {cell} is not a mark" for cell in cells if cell not in MARKS]
        for mark in {*cells} & {*TESTED}:
            if not known[mark] & {*tests}:
                found.append(f"{feature}: no test on {mark}")
        found += [
            f"{feature}: {test} does not exist" for test in tests if test not in known["V1"] | known["bench"]
        ]
    return found


def test_every_cell_that_claims_a_test_names_one() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(rows_of(page)) >= 20
    assert faults_of(page) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| prefix cache hits | - |", "| prefix cache hits | V1 |"),
        ("`repeated_prompts`", "`renamed_prompts`"),
        ("| LoRA | V1 | - |", "| LoRA | V1 | bench |"),
        ("| LoRA | V1 | - |", "| LoRA | V1 | sometimes |"),
    ],
)
def test_the_check_can_fail(old: str, new: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert old in page
    assert faults_of(page.replace(old, new))
