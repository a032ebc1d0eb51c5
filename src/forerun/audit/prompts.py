"""What to continue: prompts of a file, or our own.

Ours repeat themselves, so that look-ups find something to guess, but not so strictly that the guess is
nearly certain: a bias shows where a guess is sometimes right and sometimes wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

from forerun.drafters.documents import asked_in, numbered_lines
from forerun.errors import UnreadablePrompts
from forerun.servers.endpoint import Prompt

TEXTS = (
    "Name: Anna, Age: 31. Name: Ben, Age: 27. Name: Carla, Age: 31. Name: David, Age:",
    "Q: Is it cold? A: Yes, it is. Q: Is it warm? A: No, it is not. Q: Is it wet? A:",
    "I like tea and toast in the morning. You like coffee and toast in the morning. We like tea and cake in"
    " the evening. They like coffee and cake in the",
    "The cat sat on the mat and the dog sat on the rug, and then the cat sat on the mat and the dog sat on"
    " the rug, and then the",
)


def read_prompts(file: Path | None, most: int | None = None) -> list[Prompt]:
    """The prompts of a file, or our own: JSON lines with `prompt` (text or token ids) or `turns`, or text."""
    if file is None:
        return [Prompt(text) for text in TEXTS][:most]
    try:
        lines = list(numbered_lines(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadablePrompts(f"cannot read prompts from {file}: {error}") from error
    prompts = [_read_line(file, number, line) for number, line in lines][:most]
    if not prompts:
        raise UnreadablePrompts(f"{file} is empty: expected one prompt a line, as text or as JSON")
    return prompts


def _read_line(file: Path, number: int, line: str) -> Prompt:
    """One prompt."""
    if not line.lstrip().startswith("{"):
        return Prompt(line)
    try:
        row = json.loads(line)
        given = asked_in(row)
        if not given:
            raise ValueError("the prompt is empty")
        if isinstance(given, str):
            return Prompt(given)
        if not all(type(token) is int and token >= 0 for token in given):
            raise TypeError("token ids are whole numbers from 0")
        return Prompt(ids=tuple(given))
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"line {number} of {file} is no prompt: it needs `prompt` (text or token ids), `text` or `turns`"
            f" ({error})"
        ) from error
