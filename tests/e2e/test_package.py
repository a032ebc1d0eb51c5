"""The built wheel and sdist, and the wheel installed in a fresh environment without extras."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from forerun.audit.exact.kernel_checks import KERNEL_CLAIMS

ROOT = Path(__file__).parents[2]
SMALL_EXACT_AUDIT = ROOT / "tests" / "integration" / "programs" / "small_exact_audit.py"
"""One lossless verifier and one mutant; tests/integration/test_audit_exact.py proves every claim."""

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


def test_the_wheel_contains_only_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "forerun/py.typed" in names
    assert all(name.startswith(("forerun/", "forerun-")) for name in names)


def test_the_sdist_contains_the_files_to_run_its_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/conftest.py"} <= names
    assert {".ci/run", ".github/workflows/ci.yml", "tests/data/README.md", "tests/data/replay.jsonl"} <= names


def test_the_base_install_passes_the_exact_audit_without_torch(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", wheel], check=True, capture_output=True
    )
    command = python.with_name("forerun")
    shown = subprocess.run(
        [command, "--version"], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    assert shown.startswith("forerun ")
    audit = subprocess.run(
        [python, SMALL_EXACT_AUDIT, "--json"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert audit.returncode == 0, audit.stderr
    report = json.loads(audit.stdout)
    assert report["verdict"] == "no difference found"
    assert report["not_run"] == list(KERNEL_CLAIMS), "the base install has no torch"
