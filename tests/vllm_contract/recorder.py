"""Records which names of other libraries forerun's code uses while it runs.

An import hook rewrites every `object.name` and every call in the watched modules, so that they record the
classes of the object and the name, where a class comes from one of the libraries. `getattr`, `setattr`,
keyword arguments, and fields given to `dataclasses.replace` are recorded in the same way.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import isfunction
from types import ModuleType
from typing import Any

from vllm_contract.rewriting import Site, rewrite

LIBRARIES = ("vllm", "numba", "llvmlite", "prometheus_client", "uvicorn")
OWN = "forerun"

_OF_PYTHON = {"__module__", "__qualname__", "__name__", "__class__", "__wrapped__"}
"""Attributes that Python itself gives to classes and functions."""

Paths = tuple[str, ...]
"""Where a name may be listed: the paths of an object's classes, or of a module or function."""


@dataclass
class Recorder:
    """The names recorded so far."""

    accesses: set[tuple[Paths, str]] = field(default_factory=set)
    """Paths of the object, and the name of the attribute."""
    calls: set[tuple[Paths, str]] = field(default_factory=set)
    """Paths of the function, and a keyword; "" for positional arguments."""
    sites: set[Site] = field(default_factory=set)
    executed: set[Site] = field(default_factory=set)
    _own: set[tuple[type, str]] = field(default_factory=set)

    def load(self, obj: Any, name: str, site: Site) -> Any:
        """Record an access and return the attribute."""
        self.executed.add(site)
        self._record(obj, name)
        return getattr(obj, name)

    def store(self, obj: Any, name: str, site: Site | None = None) -> Any:
        """Record an assignment or a deletion and return the object."""
        if site is not None:
            self.executed.add(site)
        if is_own(type(obj)) and not hasattr(obj, name):
            self._own.add((type(obj), name))
        self._record(obj, name)
        return obj

    def call(self, function: Any, keywords: Sequence[str], has_positional: bool) -> Any:
        """Record a call and return the function."""
        if function is dataclasses.replace:
            return self._replace
        if function is partial:
            return self._partial
        if paths := _function_paths(function):
            self.calls.update((paths, keyword) for keyword in (*keywords, *([""] if has_positional else [])))
        return function

    def _replace(self, obj: Any, **changes: Any) -> Any:
        for name in changes:
            self._record(obj, name)
        return dataclasses.replace(obj, **changes)

    def _partial(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return partial(self.call(function, tuple(kwargs), bool(args)), *args, **kwargs)

    def _record(self, obj: Any, name: str) -> None:
        if name not in _OF_PYTHON and (type(obj), name) not in self._own and (paths := _paths_of(obj, name)):
            self.accesses.add((paths, name))

    def builtins(self) -> dict[str, Callable[..., Any]]:
        """Recording versions of the built-in functions that access attributes."""

        def get(obj: Any, name: str, *default: Any) -> Any:
            self._record(obj, name)
            return getattr(obj, name, *default)

        def has(obj: Any, name: str) -> bool:
            self._record(obj, name)
            return hasattr(obj, name)

        def put(obj: Any, name: str, value: Any) -> None:
            setattr(self.store(obj, name), name, value)

        def namespace(obj: Any) -> Any:
            self._record(obj, "__dict__")
            return vars(obj)

        return {"getattr": get, "hasattr": has, "setattr": put, "vars": namespace}


def overrides() -> Iterator[tuple[Paths, str]]:
    """Methods of the libraries' classes that forerun's imported subclasses override, as accesses."""
    for name, module in list(sys.modules.items()):
        for kind in list(vars(module).values()) if name.startswith(f"{OWN}.") else ():
            if isinstance(kind, type) and kind.__module__ == name:
                ours = _methods(each for each in kind.__mro__ if is_own(each))
                theirs = _methods(each for each in kind.__mro__ if is_library(each))
                yield from ((library_paths(kind.__mro__), method) for method in ours & theirs)


def _methods(kinds: Iterable[type]) -> set[str]:
    found = {name for kind in kinds for name, value in vars(kind).items() if isfunction(value)}
    return {name for name in found if not name.startswith("__")}


def _package(kind: Any) -> str:
    return str(getattr(kind, "__module__", None)).partition(".")[0]


def is_library(kind: Any) -> bool:
    """Whether a class or function belongs to one of the libraries."""
    return _package(kind) in LIBRARIES


def is_own(kind: Any) -> bool:
    """Whether a class or function is forerun's."""
    return _package(kind) == OWN


def library_paths(kinds: Iterable[type]) -> Paths:
    """The paths of the libraries' classes among these."""
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if is_library(kind))


def _paths_of(obj: Any, name: str) -> Paths:
    """Where a name that is looked up on an object may be listed; empty if it is not a library's."""
    if isinstance(obj, ModuleType):
        return (obj.__name__,) if obj.__name__.partition(".")[0] in LIBRARIES else ()
    if isinstance(obj, super):
        if name == "__init__":  # of forerun's subclasses, which pass all arguments on
            return ()
        proxy: Any = obj
        behind = type(proxy.__self__).__mro__
        return library_paths(behind[behind.index(proxy.__thisclass__) + 1 :])
    mro = obj.__mro__ if isinstance(obj, type) else type(obj).__mro__
    in_ours = any(name in vars(kind) for kind in mro if is_own(kind))
    in_library = any(name in vars(kind) for kind in mro if is_library(kind))
    return () if in_ours and not in_library else library_paths(mro)


def _function_paths(function: Any) -> Paths:
    """Where a library's function may be listed; for an object that is called, its `forward`.

    A function that was created inside another one has no path; the attribute that holds it is recorded.
    """
    bound_to = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if is_own(function) or (name == "__init__" and bound_to is not None):
        return ()
    if bound_to is not None and not isinstance(bound_to, ModuleType):
        kinds = bound_to.__mro__ if isinstance(bound_to, type) else type(bound_to).__mro__
        return tuple(f"{path}.{name}" for path in library_paths(kinds))
    if hasattr(function, "__qualname__"):
        is_theirs = is_library(function) and bound_to is None and "<locals>" not in function.__qualname__
        return (f"{function.__module__}.{function.__qualname__}",) if is_theirs else ()
    return tuple(f"{path}.forward" for path in library_paths(type(function).__mro__))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, recorder: Recorder) -> None:
        super().__init__(name, path)
        self.recorder = recorder

    def get_code(self, fullname: str) -> Any:
        """The rewritten code; bytecode in the cache is that of the original."""
        path = self.get_filename(fullname)
        tree, sites = rewrite(fullname, self.get_data(path).decode())
        self.recorder.sites |= sites
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.recorder.builtins(), __recorder__=self.recorder)
        super().exec_module(module)


class _Finder(PathFinder):
    """Finds modules as Python does, and rewrites those that `wanted` selects by name."""

    def __init__(self, recorder: Recorder, wanted: Callable[[str], bool]) -> None:
        self.recorder = recorder
        self.wanted = wanted

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module to rewrite; None leaves it to the other finders."""
        spec = PathFinder.find_spec(fullname, path, target) if self.wanted(fullname) else None
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(fullname, spec.origin, self.recorder)
        return spec


def install(recorder: Recorder, wanted: Callable[[str], bool]) -> _Finder:
    """Record the modules that `wanted` selects, from their import on."""
    finder = _Finder(recorder, wanted)
    sys.meta_path.insert(0, finder)
    return finder
