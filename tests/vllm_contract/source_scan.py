"""Scans forerun's source code for private names that a running engine does not reveal."""

from __future__ import annotations

import ast
import logging
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from inspect import BoundArguments
from pathlib import Path
from types import CellType
from typing import Any, TypeGuard
from warnings import WarningMessage

import numpy as np
import torch
from pydantic import BaseModel

import forerun
from forerun.core.jit import NUMBA_DISPATCHER_NAMES
from forerun.engines.vllm import contract
from vllm_contract.listing import DOCUMENTED, Listing
from vllm_contract.recorder import LIBRARIES
from vllm_contract.rewriting import Site

SOURCE = Path(forerun.__file__).parents[1]

_OTHER_TYPES: tuple[Any, ...] = (
    *(str, bytes, int, float, list, dict, set, frozenset, tuple, OSError, type),
    *(Path, OrderedDict, deque, logging.Logger, CellType, re.Pattern, np.ndarray, torch.Tensor),
    *(torch.cuda, torch.Event, torch.Generator, BaseModel, BoundArguments),
    WarningMessage("", UserWarning, "", 0),  # its class does not list its attributes
)
"""Types, or objects of them, whose attributes appear on lines that the engine does not execute."""


def unlisted_imports(sources: Iterable[Path], listing: Listing) -> list[str]:
    """Modules, classes and functions that are imported and not listed."""
    return [
        f"{file.name}: {path}"
        for file in sources
        for path in _imports(ast.parse(file.read_text(encoding="utf-8")))
        if path.partition(".")[0] in LIBRARIES and path not in LIBRARIES and not listing.has_path(path)
    ]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def unknown_names(sites: Iterable[Site], sources: Iterable[Path], listing: Listing) -> list[str]:
    """Attribute accesses, of those at `sites`, whose name is neither listed nor forerun's own.

    For lines that were not executed: the types of their objects are unknown, so names decide. Attributes of
    modules that do not belong to the libraries, and of common types, are exempt.
    """
    known = {name for kind in _OTHER_TYPES for name in dir(kind)}
    known |= {path.rpartition(".")[2] for path in DOCUMENTED} | listing.names | {*NUMBA_DISPATCHER_NAMES}
    exempt: set[Site] = set()
    for file in sources:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known |= set(_own_names(tree))
        exempt |= set(_sites_of_modules(tree, module_name(file)))
    return [f"{site[0]}:{site[1]} {site[3]}" for site in sites if site[3] not in known and site not in exempt]


def module_name(file: Path) -> str:
    """The name of a module of forerun."""
    parts = file.relative_to(SOURCE).with_suffix("").parts if file.is_relative_to(SOURCE) else (file.stem,)
    return ".".join(part for part in parts if part != "__init__")


def _own_names(tree: ast.Module) -> Iterator[str]:
    """Functions, classes, fields, and attributes that are assigned to `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node) == "self":
            yield node.attr


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes starts from; empty if it starts from another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _sites_of_modules(tree: ast.Module, module: str) -> Iterator[Site]:
    """Attribute accesses that start from an imported module of Python or of another package."""
    modules = set(other_modules(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _root(node) in modules:
            yield module, node.lineno, node.col_offset, node.attr


def other_modules(tree: ast.Module) -> Iterator[str]:
    """The names of imported modules that do not belong to the libraries."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] not in LIBRARIES:
                    yield each.asname or each.name.partition(".")[0]


def hidden_names(sources: Iterable[Path]) -> list[str]:
    """Calls of `getattr` with a default, `hasattr` and `vars` that would hide a renamed attribute.

    Exempt are modules of other packages, attributes of Python, and attributes that forerun adds itself.
    """
    added = {name for names in contract.EVERY for listed in names.added.values() for name in listed}
    found = []
    for file in sources:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants, modules = dict(_constants(tree)), {*other_modules(tree)}
        for node in filter(_may_hide, ast.walk(tree)):
            if _root(node.args[0]) in modules:
                continue
            name = _literal(node.args[1], constants) if len(node.args) > 1 else None
            if name is None or not (name in added or name.startswith("__")):
                found.append(f"{file.name}:{node.lineno} {ast.unparse(node)}")
    return found


def _may_hide(node: ast.AST) -> TypeGuard[ast.Call]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    return node.func.id in {"hasattr", "vars"} or (node.func.id == "getattr" and len(node.args) > 2)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str() as value)):
                yield name, value


def _literal(node: ast.expr, constants: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def unused_names(sources: Iterable[Path], listing: Listing) -> list[str]:
    """Listed names that appear nowhere in forerun's code."""
    used: set[str] = set()
    for file in sources:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.FunctionDef):
                used.add(node.name)
            elif isinstance(node, ast.keyword) and node.arg:
                used.add(node.arg)
            elif isinstance(node, ast.alias):
                used |= {node.name, node.name.rpartition(".")[2]}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
    return sorted(name for name in listing.names if name not in used)
