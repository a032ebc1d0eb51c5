"""The reference of the command line, from the typer application.

Types, ranges and defaults come from the commands' own signatures, so that the page does not depend on how a
version of typer prints them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from itertools import compress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import typer
from rich.text import Text

from forerun.cli.main import app
from reference_format import bounds, code, prose, table

VALUES: Final = {int: "integer", float: "number", str: "text", Path: "path"}
"""The name of an option's value by its Python type."""


def command_line() -> str:
    """Every command: a table of all, then a section each, in the order of `forerun --help`."""
    commands = [*_walk(typer.main.get_command(app), "forerun")]
    overview = [
        (f"[`{path}`](#{path.replace(' ', '-')})", prose(_paragraphs(command)[0]))
        for path, command in commands
        if not _children(command)
    ]
    sections = [_section(path, command) for path, command in commands]
    return "\n\n".join([table(("command", "purpose"), overview), *sections])


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in _children(command).items():
        yield from _walk(child, f"{path} {name}")


def _children(command: Any) -> dict[str, Any]:
    """The subcommands, panel by panel, as `--help` shows them."""
    shown = {name: child for name, child in getattr(command, "commands", {}).items() if not child.hidden}
    panels = list(dict.fromkeys(child.rich_help_panel for child in shown.values()))
    return dict(sorted(shown.items(), key=lambda item: panels.index(item[1].rich_help_panel)))


def _section(path: str, command: Any) -> str:
    hints = _hints(command)
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    parts = [
        f"{'#' * max(2, len(path.split()))} {path}",
        *(_as_markdown(paragraph) for paragraph in _paragraphs(command)),
        f"```text\nUsage: {_usage(path, command, shown)}\n```",
    ]
    for panel, members in _panels(shown).items():
        rows = [_row(each, *hints.get(each.name, (bool, None, None))) for each in members]
        kind = members[0].param_type_name
        headings = (kind, "value", "default", "description")
        parts.append(f"**{panel}**\n\n{table(*_filled(headings, rows))}")
    if command.epilog:
        parts += [_as_markdown(each) for each in _split(command.epilog, command)]
    return "\n\n".join(parts)


def _filled(
    headings: tuple[str, ...], rows: list[tuple[str, ...]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns of a table that have an entry."""
    kept = [any(column) for column in zip(*rows, strict=True)]
    return tuple(compress(headings, kept)), [tuple(compress(row, kept)) for row in rows]


def _paragraphs(command: Any) -> list[str]:
    return _split(command.help or "", command)


def _split(text: str, command: Any) -> list[str]:
    """The paragraphs that a terminal shows, without colours."""
    text = inspect.cleandoc(text).partition("\f")[0]
    if getattr(command, "rich_markup_mode", None) == "rich":
        text = Text.from_markup(text).plain
    return [part for part in text.replace("\b\n", "").split("\n\n") if part.strip()] or [""]


def _as_markdown(paragraph: str) -> str:
    """A paragraph of help: a block of code if it is indented or all of its lines are commands."""
    lines = paragraph.strip("\n").splitlines()
    is_code = all(line.startswith((" ", "$", "forerun ")) for line in lines)
    if is_code and lines:
        return "```bash\n" + inspect.cleandoc(paragraph.strip("\n")) + "\n```"
    return prose(" ".join(line.strip() for line in lines))


def _hints(command: Any) -> dict[str, tuple[Any, Any, Any]]:
    """The type, the typer options and the default of each parameter."""
    if command.callback is None:
        return {}
    function = inspect.unwrap(command.callback)
    found = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, info = get_args(hint)[:2]
            found[name] = (kind, info, inspect.signature(function).parameters[name].default)
    return found


def _panels(params: list[Any]) -> dict[str, list[Any]]:
    panels: dict[str, list[Any]] = {}
    for each in params:
        usual = "Arguments" if each.param_type_name == "argument" else "Options"
        panels.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(each)
    return panels


def _usage(path: str, command: Any, params: list[Any]) -> str:
    arguments = [each for each in params if each.param_type_name == "argument"]
    pieces = [_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments]
    pieces += ["COMMAND"] if _children(command) else []
    pieces += ["[VLLM_FLAGS...]"] if command.context_settings.get("allow_extra_args") else []
    pieces += [each for each in command.collect_usage_pieces(typer.Context(command)) if each[:3] == "[--"]
    return " ".join([path, "[OPTIONS]", *pieces])


def _argument(param: Any) -> str:
    name: str = param.metavar or param.name.upper()
    return name + ("..." if param.nargs == -1 else "")


def _row(param: Any, kind: Any, info: Any, default: Any) -> tuple[str, ...]:
    if param.param_type_name == "argument":
        name = code(_argument(param))
    else:
        name = ", ".join(code(each) for each in (*param.opts, *param.secondary_opts))
    required = "required" if param.required else _default(default, info, param)
    return name, _value(kind, info), required, prose(param.help or "")


def _default(default: Any, info: Any, param: Any) -> str:
    shown = getattr(info, "show_default", True)
    if isinstance(shown, str):
        return prose(shown)
    if not shown or default is None or default is inspect.Parameter.empty:
        return ""
    if isinstance(default, bool):
        return "" if not default else code(param.opts[0])
    every = default if isinstance(default, list | tuple) else [default]
    return ", ".join(code(str(each.value if isinstance(each, Enum) else each)) for each in every)


def _value(kind: Any, info: Any) -> str:
    """The value that an option takes; nothing for a flag."""
    if get_origin(kind) in {Union, UnionType}:
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) in {list, tuple}:
        return f"{_value(get_args(kind)[0], info)}, repeatable"
    if get_origin(kind) is Literal:
        return ", ".join(code(str(each)) for each in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(code(str(each.value)) for each in kind)
    if kind is bool:
        return ""
    if getattr(info, "metavar", None):
        return code(info.metavar)
    name: str = VALUES.get(kind, kind.__name__)
    return name + bounds(getattr(info, "min", None), getattr(info, "max", None))
