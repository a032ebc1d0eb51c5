"""Compiled loops. This module knows nothing of torch, so that guessing does not have to load it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a loop once per machine; it runs without the interpreter's lock."""
    return _compile(function, fastmath=False)


def loosely_compiled(*freedoms: str) -> Callable[[Function], Function]:
    """The same, with liberties about floats that a loop needs to be vectorised: LLVM's fast-math flags."""

    return lambda function: _compile(function, fastmath=set(freedoms))


def _compile(function: Function, fastmath: bool | set[str]) -> Function:
    """Compile, and keep the result on disk where a place for it can be written to."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return cast("Function", numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast("Function", numba.njit(**options)(function))


def inlined(function: Function) -> Function:
    """Compile a function into its callers, leaving the original as it is for every other kind of number."""
    return cast("Function", numba.njit(inline="always")(function))
