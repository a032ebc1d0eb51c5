"""Imports run one way. The second half shows that the first can fail."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "forerun"

LAYERS = (
    {"installation"},
    {"errors"},
    {"types", "plots"},
    {"config"},
    {"core"},
    {"models"},
    {"drafters"},
    {"control"},
    {"engines"},
    {"servers"},
    {"audit", "simulate"},
    {"bench", "distill"},
    {"tune"},
    {"cli"},
)
"""Each room may import rooms of earlier layers, and itself."""

OWN = {
    "vllm": ("engines/vllm",),
    "transformers": ("models",),
    "matplotlib": ("plots", "bench/figures", "audit/figures"),
}
"""Packages that only some rooms may import."""


def level_of(room: str) -> int:
    return next(level for level, rooms in enumerate(LAYERS) if room in rooms)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "forerun")


def violations(source: Path) -> list[str]:
    found = []
    for file in sorted(source.rglob("*.py")):
        place = file.relative_to(source)
        if place.as_posix() in {"__init__.py", "__main__.py"}:
            continue
        room = place.parts[0].removesuffix(".py")
        for name in imported(ast.parse(file.read_text())):
            top, *rest = name.split(".")
            if top == "forerun" and rest and rest[0] != "__version__":
                target = rest[0]
                if room != target and level_of(target) >= level_of(room):
                    found.append(f"{place}: {room} imports {target}")
            elif top in OWN and not place.as_posix().startswith(OWN[top]):
                found.append(f"{place}: only {' and '.join(OWN[top])} import {top}")
    return found


def test_imports_run_one_way() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("core/bad.py", "from forerun.audit import exact"),
        ("core/bad.py", "import forerun.cli.main"),
        ("core/bad.py", "def f():\n    from forerun.drafters import ngram"),
        ("core/bad.py", "from forerun import bench"),
        ("bench/bad.py", "from forerun.tune import advise"),
        ("audit/bad.py", "from forerun.bench import race"),
        ("errors.py", "from forerun.types import Draft"),
        ("drafters/bad.py", "import vllm"),
        ("core/bad.py", "from transformers import AutoModel"),
    ],
)
def test_the_import_check_can_fail(tmp_path: Path, place: str, line: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line + "\n")
    assert len(violations(tmp_path)) == 1


def test_an_import_along_the_arrows_is_fine(tmp_path: Path) -> None:
    (tmp_path / "engines" / "vllm").mkdir(parents=True)
    (tmp_path / "engines" / "vllm" / "worker.py").write_text("import vllm\nfrom forerun.core import verify\n")
    assert violations(tmp_path) == []


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("transformers", "vllm", "matplotlib")))
import forerun.bench.run, forerun.bench.report, forerun.tune.run, forerun.tune.page
"""
"""What asks servers, and what makes reports from records, where none of these can be imported."""


def test_records_are_read_and_servers_asked_without_extras() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], check=True)


def test_vllms_own_server_says_what_to_install() -> None:
    hidden = "import runpy, sys; sys.modules['vllm'] = None; "
    start = hidden + "runpy.run_module('forerun.engines.vllm', run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert len(found.stderr.strip().splitlines()) == 1
    assert re.search(r"pip install .*\[vllm\]", found.stderr)
