"""Files of JSON records: numbered lines, and the key names of earlier versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Non-blank lines of a file of JSON lines, numbered from 1. Only a line feed ends a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def rename_keys(row: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """The row with the keys in `new_names` renamed, not below the first level."""
    return {new_names.get(key, key): value for key, value in row.items()}
