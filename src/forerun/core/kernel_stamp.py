"""Stamps of compiled kernels by content: bytecode, constants, compile options and callees."""

from __future__ import annotations

import builtins
import dis
import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np
from numba.extending import is_jitted

_PLAIN_TYPES: Final = (type(None), type(...), bool, int, float, complex, str, bytes)
_ATTRIBUTE_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD")


class KernelStamp:
    """The stamp of one kernel, computed at each use.

    A kernel may call functions that are defined after it, and machine code embeds the values that constants
    have when it is compiled: neither is known at decoration. Pickles as a string, which it compares equal to.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options

    def __str__(self) -> str:
        described = _Description(self._function)
        described.add_kernel(self._function, self._options)
        return described.digest()

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # its value changes with the constants of the kernel

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class _Description:
    """A text that changes with everything that the machine code of a kernel depends on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._package = function.__module__.partition(".")[0]
        self._lines: list[str] = []
        self._numbers: dict[FunctionType, int] = {}

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self._lines).encode()).hexdigest()

    def add_kernel(self, function: Any, options: dict[str, Any]) -> None:
        """Describe a function once, with the functions that it uses; recursive calls refer to its number."""
        if function in self._numbers:
            self._lines.append(f"function {self._numbers[function]}")
            return
        self._numbers[function] = len(self._numbers)
        for name, option in sorted(options.items()):
            self._add(f"option {name}", sorted(option) if isinstance(option, set) else option)
        self._lines.append(_describe_code(function.__code__))
        self._add("defaults", function.__defaults__)
        for name, default in sorted((function.__kwdefaults__ or {}).items()):
            self._add(f"default {name}", default)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._add(f"{function.__qualname__}: {name}", cell.cell_contents)
        for names in _global_names(function.__code__):
            self._add_global(function, names)

    def _add_global(self, function: FunctionType, names: tuple[str, ...]) -> None:
        """Describe a global of `function`, or an attribute of a module that is a global."""
        namespace = function.__globals__
        if names[0] not in namespace:
            self._lines.append(f"builtin {names[0]} {hasattr(builtins, names[0])}")
            return
        value, used = namespace[names[0]], 1
        while isinstance(value, ModuleType) and used < len(names):
            value = getattr(value, names[used])
            used += 1
        self._add(f"{function.__qualname__}: {'.'.join(names[:used])}", value)

    def _add(self, label: str, value: Any) -> None:
        self._lines.append(f"{label} {type(value).__qualname__}")
        if isinstance(value, _PLAIN_TYPES):
            self._lines.append(repr(value))
        elif isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            self._lines.append(
                f"{array.dtype!r} {array.shape} {array.flags.c_contiguous} {array.tobytes().hex()}"
            )
        elif isinstance(value, tuple | list):
            for number, element in enumerate(value):
                self._add(f"{label}[{number}]", element)
        elif is_jitted(value):
            self.add_kernel(value.py_func, value.targetoptions)
        else:
            self._add_by_name(label, value)

    def _add_by_name(self, label: str, value: Any) -> None:
        """Describe a function or type of numpy or Python; numba implements it, and checks its own version."""
        if isinstance(value, np.dtype):
            self._lines.append(repr(value))
        elif callable(value) and not self._is_own(value):
            self._lines.append(f"{getattr(value, '__module__', None)}.{value.__name__}")
        else:
            raise TypeError(
                f"{label} is of type {type(value).__qualname__}, which cannot be compared with the kernel "
                "in numba's cache; use a number, a string, an array, a tuple of these or a compiled function"
            )

    def _is_own(self, value: Any) -> bool:
        return (getattr(value, "__module__", None) or "").partition(".")[0] == self._package


@cache
def _describe_code(code: CodeType) -> str:
    """Bytecode, constants and names, without line numbers."""
    constants = ", ".join(_describe_constant(constant) for constant in code.co_consts)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {names} {counts} [{constants}]"


def _describe_constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return f"({_describe_code(constant)})"
    if isinstance(constant, tuple | frozenset):
        elements = [_describe_constant(element) for element in constant]
        ordered = elements if isinstance(constant, tuple) else sorted(elements)
        return f"{type(constant).__name__}({', '.join(ordered)})"
    return f"{type(constant).__name__} {constant!r}"


@cache
def _global_names(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Each global that the code and its nested functions load, followed by the attributes loaded from it."""
    return tuple(dict.fromkeys(_iterate_global_names(code)))


def _iterate_global_names(code: CodeType) -> Iterator[tuple[str, ...]]:
    names: list[str] = []
    for instruction in dis.get_instructions(code):
        if names and instruction.opname in _ATTRIBUTE_LOADS:
            names.append(instruction.argval)
            continue
        if names and instruction.opname == "EXTENDED_ARG":
            continue
        if names:
            yield tuple(names)
        names = [instruction.argval] if instruction.opname == "LOAD_GLOBAL" else []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iterate_global_names(constant)
