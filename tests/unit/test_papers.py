"""The page of the papers: every module, name and test in its tables exists. The second half shows that the
checks can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
HEADER = ["mechanism", "where in the code", "test that proves it"]
MIN_ROWS = 105

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, as its cells."""

    mechanism: str
    code: str
    tests: str


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def rows_of(page: str) -> list[Row]:
    """The rows of all tables with `HEADER`; raises if one has another number of cells."""
    rows: list[Row] = []
    is_inside = False
    for line in page.splitlines():
        cells = cells_of(line) if line.startswith("|") else []
        if not cells or cells == HEADER:
            is_inside = bool(cells)
        elif is_inside and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append(Row(*cells))
    return rows


def references_in(cell: str) -> list[str]:
    """The code spans of a cell that has nothing else; none if it has."""
    has_text = re.sub(r"`[^`]+`", "", cell).strip(" ,")
    return [] if has_text else re.findall(r"`([^`]+)`", cell)


@cache
def definitions_in(file: Path) -> frozenset[str]:
    """Functions and classes of a file, and members of its classes with the name of the class before them."""
    return frozenset(_definitions(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, Definition):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{prefix}{node.name}.")


def fault_of_code(reference: str) -> str | None:
    """What is wrong with `module.py` or `module.py: name`, relative to the package."""
    module, _, name = reference.partition(": ")
    file = ROOT / "src" / "forerun" / module
    if file.suffix != ".py" or not file.is_file():
        return f"no module {module}"
    if name and name not in definitions_in(file):
        return f"no {name} in {module}"
    return None


def fault_of_test(reference: str) -> str | None:
    """What is wrong with `tests/path/test_file.py::test_name`; the test may be in a class."""
    path, _, name = reference.partition("::")
    file = ROOT / path
    if not (path.startswith("tests/") and file.name.startswith("test_") and file.is_file()):
        return f"no test file {path}"
    names = {each.rpartition(".")[2] for each in definitions_in(file)}
    if not name.startswith("test_") or name not in names:
        return f"no test {name} in {path}"
    return None


def faults_of(row: Row) -> list[str]:
    """Everything that is wrong with a row."""
    code, tests = references_in(row.code), references_in(row.tests)
    missing = [
        f"{row.mechanism!r} has no {what}"
        for what, found in (("mechanism", row.mechanism), ("module", code), ("test", tests))
        if not found
    ]
    found = [*map(fault_of_code, code), *map(fault_of_test, tests)]
    return missing + [fault for fault in found if fault is not None]


def faults_in(page: str) -> list[str]:
    return [fault for row in rows_of(page) for fault in faults_of(row)]


def test_every_module_name_and_test_on_the_page_exists() -> None:
    assert faults_in(PAGE.read_text(encoding="utf-8")) == []


def test_the_tables_are_found() -> None:
    assert len(rows_of(PAGE.read_text(encoding="utf-8"))) >= MIN_ROWS


def test_no_mechanism_of_a_document_is_listed_twice() -> None:
    for section in PAGE.read_text(encoding="utf-8").split("\n## "):
        mechanisms = [row.mechanism for row in rows_of(section)]
        assert len(mechanisms) == len(set(mechanisms))


CODE = "`core/acceptance.py: accepts`, `core/noise.py`, `models/runner.py: Runner.forward`"
TESTS = "`tests/unit/test_papers.py::test_the_row_that_is_broken_below_has_no_fault`"
THIS = "tests/unit/test_papers.py"


def page_with(mechanism: str, code: str, tests: str) -> str:
    header = f"| {' | '.join(HEADER)} |\n| --- | --- | --- |\n"
    return f"# A page\n\n{header}| {mechanism} | {code} | {tests} |\n\nText.\n"


def test_the_row_that_is_broken_below_has_no_fault() -> None:
    page = page_with("2.3: acceptance", CODE, TESTS)
    assert rows_of(page) == [Row("2.3: acceptance", CODE, TESTS)]
    assert faults_in(page) == []


@pytest.mark.parametrize(
    ("code", "tests", "fault"),
    [
        ("`core/absent.py: accepts`", TESTS, "no module core/absent.py"),
        ("`core: accepts`", TESTS, "no module core"),
        ("`core/acceptance.py: accept`", TESTS, "no accept in core/acceptance.py"),
        ("`models/runner.py: forward`", TESTS, "no forward in models/runner.py"),
        ("`models/runner.py: Runner.backward`", TESTS, "no Runner.backward in models/runner.py"),
        (f"{CODE}, `core/absent.py`", TESTS, "no module core/absent.py"),
        ("", TESTS, "'m' has no module"),
        ("somewhere in `core/noise.py`", TESTS, "'m' has no module"),
        (CODE, "", "'m' has no test"),
        (CODE, "a test", "'m' has no test"),
        (CODE, "`tests/unit/test_absent.py::test_a`", "no test file tests/unit/test_absent.py"),
        (CODE, "`src/forerun/testing.py::test_a`", "no test file src/forerun/testing.py"),
        (CODE, f"`{THIS}::test_absent`", f"no test test_absent in {THIS}"),
        (CODE, f"`{THIS}::faults_of`", f"no test faults_of in {THIS}"),
        (CODE, f"`{THIS}`", f"no test  in {THIS}"),
        (CODE, f"{TESTS}, `{THIS}::test_absent`", f"no test test_absent in {THIS}"),
    ],
)
def test_a_broken_row_is_found(code: str, tests: str, fault: str) -> None:
    assert faults_in(page_with("m", code, tests)) == [fault]


def test_a_row_without_a_mechanism_is_found() -> None:
    assert faults_in(page_with("", CODE, TESTS)) == ["'' has no mechanism"]


@pytest.mark.parametrize("cells", ["only two | cells", "one | two | three | four"])
def test_a_row_with_another_number_of_cells_is_an_error(cells: str) -> None:
    with pytest.raises(TypeError):
        rows_of(page_with("m", CODE, TESTS).replace(f"m | {CODE} | {TESTS}", cells))


def test_a_renamed_test_or_function_on_the_page_is_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in ("test_equation_1_is_its_closed_form", "rejection_sample`"):
        assert name in page
        assert faults_in(page.replace(name, f"renamed_{name}"))


def test_a_page_with_other_columns_has_no_rows() -> None:
    page = PAGE.read_text(encoding="utf-8").replace(HEADER[1], "module")
    assert rows_of(page) == []
    assert faults_in(page) == []


def test_tests_in_classes_are_found(tmp_path: Path) -> None:
    file = tmp_path / "test_file.py"
    file.write_text("class TestRace:\n    async def test_one(self): ...\n\n    x = 1\n")
    assert definitions_in(file) == {"TestRace", "TestRace.test_one"}
