"""Files of prompts, in the formats that every command accepts.

Each line is one prompt: text, or a JSON object with `prompt` (text or token ids), `turns` (Spec-Bench: the
first turn is the prompt) or `text`, and optionally `question_id` and `category` or `cat`. A JSON list is read
as ShareGPT: the first user message of each conversation is a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forerun.errors import UnreadablePrompts
from forerun.json_records import numbered_lines

PROMPT_FORMATS: Final = "one prompt per line, as text or as JSON (`prompt`, `turns` or `text`), or ShareGPT"
"""The formats, for help texts and messages."""

SHAREGPT: Final = "sharegpt"
"""The category of prompts of a ShareGPT file."""


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A prompt of a file, as text or as token ids. `id` is its line number unless the file has ids, and
    `category` the file's name unless it has categories.
    """

    id: str
    category: str
    text: str = ""
    ids: tuple[int, ...] = ()


def read_prompt_file(file: Path, *, allow_empty: bool = False) -> list[FilePrompt]:
    """The prompts of a file, at least one. An empty prompt in JSON raises unless `allow_empty` is set."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadablePrompts(
            f"cannot read prompts from {file}: {error}; expected a file with {PROMPT_FORMATS}"
        ) from error
    conversations = _json_list(file, text)
    if conversations is not None:
        prompts = list(_first_messages(file, conversations))
    else:
        prompts = [_read_line(file, number, line, allow_empty) for number, line in numbered_lines(text)]
    if not prompts:
        raise UnreadablePrompts(f"{file} has no prompts: expected {PROMPT_FORMATS}")
    return prompts


def _json_list(file: Path, text: str) -> list[Any] | None:
    """The JSON list in a file, if it holds one; a line of text may start with a bracket too."""
    if not text.lstrip().startswith("["):
        return None
    try:
        return list(json.loads(text))
    except ValueError as error:
        if file.suffix == ".json":
            raise UnreadablePrompts(f"{file} is not valid JSON: {error}") from error
        return None


def _first_messages(file: Path, conversations: Sequence[Any]) -> Iterator[FilePrompt]:
    """The first user message of each ShareGPT conversation that has one."""
    try:
        for number, row in enumerate(conversations):
            users = (each for each in row["conversations"] if each["from"] in {"human", "user"})
            first = next(users, None)
            if first is not None and str(first["value"]).strip():
                yield FilePrompt(str(row.get("id", number)), SHAREGPT, str(first["value"]))
    except (TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"{file} is not a ShareGPT file: expected a list of objects with `conversations`, each with"
            f" `from` and `value` ({error})"
        ) from error


def _read_line(file: Path, number: int, line: str, allow_empty: bool) -> FilePrompt:
    if not line.lstrip().startswith("{"):
        return FilePrompt(str(number), file.stem, line)
    try:
        row = json.loads(line)
        given = _prompt_of(row)
        text = given if isinstance(given, str) else ""
        ids = () if isinstance(given, str) else tuple(given)
        if not all(type(token) is int and token >= 0 for token in ids):
            raise TypeError("token ids must be integers >= 0")
        if not text.strip() and not ids and not allow_empty:
            raise ValueError("the prompt is empty")
        category = str(row.get("category", row.get("cat", file.stem)))
        return FilePrompt(str(row.get("question_id", number)), category, text, ids)
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"line {number} of {file} is not a prompt: expected `prompt` (text or token ids), `turns` or"
            f" `text` ({error})"
        ) from error


def _prompt_of(row: dict[str, Any]) -> Any:
    """The prompt of a JSON object: its `prompt`, the first of its `turns`, or its `text`."""
    if "prompt" in row:
        return row["prompt"]
    return row["turns"][0] if "turns" in row else row["text"]
