"""Removes one name at a time from a class, a module or a live object."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

from forerun.engines.vllm.contract import checks
from forerun.engines.vllm.contract.private_names import PrivateNames
from forerun.errors import UnsupportedEngine


@contextmanager
def without(obj: Any, name: str) -> Iterator[None]:
    """Within this block, an object has no attribute of this name, nor do its classes."""
    with ExitStack() as stack:
        if isinstance(obj, ModuleType):
            stack.enter_context(_without_lazy(obj, name))
        kinds = inspect.getmro(obj) if isinstance(obj, type) else (obj, *type(obj).__mro__)
        for owner in kinds:
            is_immutable = isinstance(owner, type) and owner.__module__ == "builtins"
            if not is_immutable and name in getattr(owner, "__dict__", {}):
                stack.enter_context(_deleted(owner, name))
        yield


@contextmanager
def _deleted(owner: Any, name: str) -> Iterator[None]:
    value = vars(owner)[name]
    delattr(owner, name)
    try:
        yield
    finally:
        if isinstance(owner, type):
            setattr(owner, name, value)
        else:
            vars(owner)[name] = value


@contextmanager
def _without_lazy(module: ModuleType, name: str) -> Iterator[None]:
    """Within this block, a module does not create an attribute on its first use."""
    lazy = vars(module).get("__getattr__")
    if lazy is None:
        yield
        return

    def find(wanted: str) -> Any:
        if wanted == name:
            raise AttributeError(name)
        return lazy(wanted)

    with patch.dict(vars(module), {"__getattr__": find}):
        yield


@contextmanager
def without_path(path: str) -> Iterator[None]:
    """Within this block, there is no object at a dotted path."""
    owner, _, name = path.rpartition(".")
    with without(checks.find(owner), name):
        yield


@contextmanager
def without_parameter(path: str, parameter: str) -> Iterator[None]:
    """Within this block, a function's parameter has another name."""
    owner, _, name = path.rpartition(".")
    signature = inspect.signature(checks.find(path))
    renamed = [
        each.replace(name=f"{each.name}_renamed") if each.name == parameter else each
        for each in signature.parameters.values()
    ]

    def replacement(*_: Any, **__: Any) -> None: ...

    replacement.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
    with patch.object(
        checks.find(owner), name, staticmethod(replacement) if _is_class(owner) else replacement
    ):
        yield


def _is_class(path: str) -> bool:
    return isinstance(checks.find(path), type)


@contextmanager
def without_field(path: str, name: str) -> Iterator[None]:
    """Within this block, a dataclass, pydantic model or named tuple has no field of this name."""
    kind = checks.find(path)
    if is_dataclass(kind):
        fields = {key: value for key, value in kind.__dataclass_fields__.items() if key != name}
        with patch.object(kind, "__dataclass_fields__", fields):
            yield
    elif issubclass(kind, BaseModel):
        models = {key: value for key, value in kind.model_fields.items() if key != name}
        with patch.object(kind, "__pydantic_fields__", models):
            yield
    else:
        with patch.object(kind, "_fields", tuple(each for each in kind._fields if each != name)):
            yield


@contextmanager
def without_assignment(path: str, name: str) -> Iterator[None]:
    """Within this block, the source of a class assigns to another name."""
    source = re.sub(rf"self\.{name}\b", f"self.{name}_renamed", inspect.getsource(checks.find(path)))
    with patch.object(inspect, "getsource", lambda _: source):
        yield


def live_messages(
    names: PrivateNames, objects: Mapping[str, Any], run_checks: Sequence[Callable[[], None]]
) -> dict[str, str]:
    """The error for every live name, by path, after it was removed from the object of its class."""
    found = {}
    for kind, expected in names.live.items():
        for name in expected:
            with without(objects[kind], name):
                found[f"{kind}.{name}"] = _message(run_checks)
    return found


def _message(run_checks: Sequence[Callable[[], None]]) -> str:
    for run in run_checks:
        try:
            run()
        except UnsupportedEngine as error:
            return str(error)
    return "no error"
