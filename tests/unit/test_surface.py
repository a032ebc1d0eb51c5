"""The public surface: what is exported, what importing it loads, and the exception tree as it is drawn."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import forerun
from forerun import errors

HEAVY = {"torch", "numba", "scipy", "transformers", "vllm", "matplotlib", "typer", "rich", "httpx"}


def test_all_is_true() -> None:  # the linter sees to its order
    assert len(set(forerun.__all__)) == len(forerun.__all__)
    assert all(hasattr(forerun, name) for name in forerun.__all__)


@pytest.mark.parametrize("module", ["forerun", "forerun.types", "forerun.config"])
def test_importing_the_surface_loads_nothing_heavy(module: str) -> None:
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


def test_the_drawn_exception_tree_is_the_real_one() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    real = {
        name for name, value in vars(errors).items() if isinstance(value, type) and name != "ForerunError"
    }
    assert drawn == real
    assert all(issubclass(getattr(errors, name), errors.ForerunError) for name in real)


def test_a_missing_extra_says_how_to_get_it() -> None:
    with pytest.raises(ImportError, match=r"pip install .*\[plots\]"):
        raise errors.MissingExtra("matplotlib", "plots")
