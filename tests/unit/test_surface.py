"""The public API: import cost, and the exception tree in the documentation."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from forerun import errors

HEAVY = {"torch", "numba", "scipy", "transformers", "vllm", "matplotlib", "typer", "rich", "httpx"}


@pytest.mark.parametrize("module", ["forerun", "forerun.types", "forerun.config"])
def test_importing_the_api_loads_no_heavy_package(module: str) -> None:
    program = f"import {module}, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert set(loaded.split()) & HEAVY == set()


def test_help_and_version_load_no_torch() -> None:
    program = "import sys; from forerun.cli.main import app; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert set(loaded.split()) & {"torch", "numba", "scipy", "vllm"} == set()


def test_the_documented_exception_tree_lists_every_exception() -> None:
    documented = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and name != "ForerunError"
    }
    assert documented == defined
    assert all(issubclass(getattr(errors, name), errors.ForerunError) for name in defined)


def test_a_missing_extra_names_the_install_command() -> None:
    with pytest.raises(ImportError, match=r"pip install .*\[plots\]"):
        raise errors.MissingExtra("matplotlib", "plots")
