"""The shape of the package: small modules, and one meaning per class name. The second half shows that the
checks can fail.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "forerun"
MAX_LINES = 300


def long_modules(source: Path) -> dict[str, int]:
    """Modules above `MAX_LINES`, with their numbers of lines."""
    lengths = {
        file.relative_to(source).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in source.rglob("*.py")
    }
    return {module: length for module, length in lengths.items() if length > MAX_LINES}


def repeated_classes(source: Path) -> dict[str, list[str]]:
    """Class names defined more than once, nested classes included, with the modules that define them."""
    modules: dict[str, list[str]] = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                modules[node.name.lstrip("_")].append(file.relative_to(source).as_posix())
    return {name: found for name, found in modules.items() if len(found) > 1}


def test_no_module_exceeds_300_lines() -> None:
    assert long_modules(SOURCE) == {}


def test_a_class_name_is_defined_once_in_the_package() -> None:
    assert repeated_classes(SOURCE) == {}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "verify.py").write_text("class Verifier: ...\n")
    return tmp_path


def test_the_length_check_can_fail(package: Path) -> None:
    module = package / "core" / "planner.py"
    module.write_text("x = 1\n" * MAX_LINES)
    assert long_modules(package) == {}
    module.write_text("x = 1\n" * (MAX_LINES + 1))
    assert long_modules(package) == {"core/planner.py": MAX_LINES + 1}


@pytest.mark.parametrize(
    "twin",
    [
        "class Verifier: ...",
        "class _Verifier: ...",
        "class Outer:\n    class Verifier: ...",
        "def make():\n    class Verifier: ...",
    ],
)
def test_the_class_name_check_can_fail(package: Path, twin: str) -> None:
    assert repeated_classes(package) == {}
    (package / "engine.py").write_text(twin + "\n")
    assert repeated_classes(package) == {"Verifier": ["core/verify.py", "engine.py"]}
