"""Flags of `vllm serve`, read without vLLM's parser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from forerun.errors import ConfigurationError

_SHORT: Final = {"-sc": "--speculative-config"}


def split_equals(given: Sequence[str]) -> list[str]:
    """Split `--flag=value`, spell flags with hyphens as vLLM does, and write short names out."""
    parts: list[str] = []
    for each in given:
        flag, equals, value = each.partition("=")
        name, dot, key = flag.partition(".")
        if name in _SHORT:
            name = _SHORT[name]
        elif not each.startswith("--"):
            parts.append(each)
            continue
        parts.append(name.replace("_", "-") + dot + key)
        parts += [value] if equals else []
    return parts


def has_flag(given: Sequence[str], flag: str) -> bool:
    """Whether a flag is given, also with a dotted key."""
    return any(part.partition(".")[0] == flag for part in split_equals(given))


def flag_value(given: Sequence[str], flag: str) -> str | None:
    """The value of a flag, or None if it is not given; the last occurrence counts, as for vLLM."""
    return take_flag(split_equals(given), flag)[1] if flag in split_equals(given)[:-1] else None


def last_switch(given: Sequence[str], flag: str) -> bool | None:
    """Whether a switch is on or off (`--no-...`), or None if it is not given; the last one counts."""
    values = {flag: True, f"--no-{flag[2:]}": False}
    found = [values[part] for part in split_equals(given) if part in values]
    return found[-1] if found else None


def take_flag(parts: Sequence[str], flag: str) -> tuple[list[str], str | None]:
    """The split flags without all occurrences of one, and the last value of that one."""
    rest: list[str] = []
    found = None
    following = iter(parts)
    for part in following:
        if part != flag:
            rest.append(part)
            continue
        found = next(following, None)
        if found is None:
            raise ConfigurationError(f"{flag} needs a value")
    return rest, found


def take_object(parts: Sequence[str], flag: str) -> tuple[list[str], dict[str, Any] | None]:
    """The split flags without one whose value is a JSON object, and this object.

    Keys may be given one by one, as `--flag.key value`.
    """
    rest, text = take_flag(parts, flag)
    value = None if text is None else parse_object(flag, text)
    for dotted in [part for part in rest if part.startswith(f"{flag}.")]:
        rest, text = take_flag(rest, dotted)
        value = value or {}
        _insert(value, dotted.removeprefix(f"{flag}.").split("."), text or "")
    return rest, value


def _insert(value: dict[str, Any], keys: Sequence[str], text: str) -> None:
    """Set the value at a path of keys; text that is not JSON is a string."""
    *path, last = keys
    for key in path:
        value = value.setdefault(key, {})
    try:
        value[last] = json.loads(text)
    except json.JSONDecodeError:
        value[last] = text


def parse_object(flag: str, text: str) -> dict[str, Any]:
    """Parse the JSON object that is the value of a flag."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{flag} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{flag} must be a JSON object; got {text}")
    return value
