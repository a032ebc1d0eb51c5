"""numba compilation with an on-disk cache; does not import torch, so that drafting does not load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import event
from numba.extending import is_jitted

from forerun.core.kernel_stamp import KernelStamp

Function = TypeVar("Function", bound=Callable[..., Any])

# The path of attributes from a dispatcher to the stamp by which numba validates its cache.
NUMBA_PRIVATE_NAMES: Final[tuple[str, ...]] = ("_cache", "_cache_file", "_source_stamp")

# The other private attributes of a dispatcher in use: its compile options.
NUMBA_DISPATCHER_NAMES: Final[tuple[str, ...]] = ("targetoptions",)


def compiled(function: Function) -> Function:
    """Compile a loop once per machine; it runs without the GIL."""
    return _compile(function, fastmath=False)


def compiled_with_fastmath(*flags: str) -> Callable[[Function], Function]:
    """Like `compiled`, with LLVM fast-math flags that allow vectorisation."""

    return lambda function: _compile(function, fastmath=set(flags))


def _compile(function: Function, fastmath: bool | set[str]) -> Function:
    """Compile, and cache the result on disk if the cache directory is writable."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no writable cache directory
        return cast("Function", numba.njit(**options)(function))
    if is_jitted(dispatcher):  # NUMBA_DISABLE_JIT=1 returns the function itself
        stamp_by_content(dispatcher)
    return cast("Function", dispatcher)


def stamp_by_content(dispatcher: Any) -> None:
    """Validate the cached machine code of a kernel by everything that it depends on.

    numba validates by the modification time of the kernel's own file, although machine code embeds functions
    and constants of other files.
    """
    for name in NUMBA_DISPATCHER_NAMES:
        _require(dispatcher, name)
    owner = dispatcher
    for name in NUMBA_PRIVATE_NAMES:
        _require(owner, name)
        owner, previous = getattr(owner, name), owner
    setattr(previous, NUMBA_PRIVATE_NAMES[-1], KernelStamp(dispatcher.py_func, dispatcher.targetoptions))


def _require(owner: Any, name: str) -> None:
    if not hasattr(owner, name):
        raise AttributeError(
            f"numba {numba.__version__} has no {type(owner).__name__}.{name}, by which forerun detects "
            "stale machine code in numba's cache; install a version of numba that pyproject.toml allows"
        )


@contextmanager
def on_compile(notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` with the name of each function that numba starts to compile.

    Functions loaded from the on-disk cache are not reported. A function is reported before the functions that
    it calls.
    """
    with event.install_listener("numba:compile", _CompileListener(notify)):
        yield


class _CompileListener(event.Listener):  # type: ignore[misc]  # numba has no types
    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify

    def on_start(self, event: event.Event) -> None:
        function = event.data["dispatcher"].py_func
        self._notify(f"{function.__module__}.{function.__qualname__}")

    def on_end(self, event: event.Event) -> None:
        """Ignored; only the start of a compilation is reported."""


def inlined(function: Function) -> Function:
    """Compile a function into its compiled callers; the original still accepts any number type."""
    return cast("Function", numba.njit(inline="always")(function))
