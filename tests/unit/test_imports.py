"""Imports follow the layers. The second half shows that the check can fail."""

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
    {"types", "json_records", "rendering", "exactness"},
    {"config", "prompts"},
    {"core"},
    {"models"},
    {"drafters"},
    {"control"},
    {"engines"},
    {"servers"},
    {"audit", "simulate"},
    {"bench", "distill"},
    {"tune", "theory", "selftest", "testing", "pytest_plugin"},
    {"cli"},
)
"""A package may import packages of earlier layers, and itself."""

RESTRICTED = {
    "vllm": ("engines/vllm",),
    "transformers": ("models",),
    "matplotlib": ("rendering/plots",),
}
"""Third-party packages that only some packages may import."""


def level_of(package: str) -> int:
    return next(level for level, packages in enumerate(LAYERS) if package in packages)


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
        path = file.relative_to(source)
        if path.as_posix() in {"__init__.py", "__main__.py"}:
            continue
        package = path.parts[0].removesuffix(".py")
        for name in imported(ast.parse(file.read_text())):
            top, *rest = name.split(".")
            if top == "forerun" and rest and rest[0] != "__version__":
                target = rest[0]
                if package != target and level_of(target) >= level_of(package):
                    found.append(f"{path}: {package} imports {target}")
            elif top in RESTRICTED and not path.as_posix().startswith(RESTRICTED[top]):
                found.append(f"{path}: only {' and '.join(RESTRICTED[top])} import {top}")
    return found


def test_imports_follow_the_layers() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/bad.py", "from forerun.audit import exact"),
        ("core/bad.py", "import forerun.cli.main"),
        ("core/bad.py", "def f():\n    from forerun.drafters import ngram"),
        ("core/bad.py", "from forerun import bench"),
        ("bench/bad.py", "from forerun.tune import recommendation"),
        ("audit/bad.py", "from forerun.bench import run"),
        ("errors.py", "from forerun.types import Draft"),
        ("drafters/bad.py", "import vllm"),
        ("core/bad.py", "from transformers import AutoModel"),
    ],
)
def test_the_import_check_can_fail(tmp_path: Path, path: str, line: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line + "\n")
    assert len(violations(tmp_path)) == 1


def test_an_import_of_an_earlier_layer_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "engines" / "vllm").mkdir(parents=True)
    (tmp_path / "engines" / "vllm" / "worker.py").write_text("import vllm\nfrom forerun.core import verify\n")
    assert violations(tmp_path) == []


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("transformers", "vllm", "matplotlib")))
import forerun.bench.run, forerun.bench.report_page, forerun.tune.run, forerun.tune.page
"""
"""Modules that query servers or build reports, where none of the extras can be imported."""


def test_records_and_servers_need_no_extras() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], check=True)


def test_the_vllm_server_without_vllm_names_the_extra() -> None:
    hidden = "import runpy, sys; sys.modules['vllm'] = None; "
    start = hidden + "runpy.run_module('forerun.engines.vllm', run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert len(found.stderr.strip().splitlines()) == 1
    assert re.search(r"pip install .*\[vllm\]", found.stderr)
