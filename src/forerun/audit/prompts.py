"""Prompts from a file, or the built-in ones.

The built-in prompts repeat themselves, so that lookup drafters propose draft tokens, but not so strictly that
acceptance is nearly certain: a bias shows only where some draft tokens are accepted and some rejected.
"""

from __future__ import annotations

import json
from pathlib import Path

from forerun.drafters.documents import numbered_lines, prompt_of
from forerun.errors import UnreadablePrompts
from forerun.servers.endpoint import Prompt

DEFAULT_PROMPTS = (
    "Name: Anna, Age: 31. Name: Ben, Age: 27. Name: Carla, Age: 31. Name: David, Age:",
    "Q: Is it cold? A: Yes, it is. Q: Is it warm? A: No, it is not. Q: Is it wet? A:",
    "I like tea and toast in the morning. You like coffee and toast in the morning. We like tea and cake in"
    " the evening. They like coffee and cake in the",
    "The cat sat on the mat and the dog sat on the rug, and then the cat sat on the mat and the dog sat on"
    " the rug, and then the",
)


def read_prompts(
    file: Path | None, max_prompts: int | None = None, *, allow_empty: bool = False
) -> list[Prompt]:
    """Read prompts, one per line: text, or JSON with `prompt` or `turns`. None: the built-in prompts.

    An empty prompt in JSON raises unless `allow_empty` is set.
    """
    if file is None:
        return [Prompt(text) for text in DEFAULT_PROMPTS][:max_prompts]
    try:
        lines = list(numbered_lines(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadablePrompts(f"cannot read prompts from {file}: {error}") from error
    prompts = [_read_line(file, number, line, allow_empty) for number, line in lines][:max_prompts]
    if not prompts:
        raise UnreadablePrompts(f"{file} is empty: expected one prompt per line, as text or as JSON")
    return prompts


def _read_line(file: Path, number: int, line: str, allow_empty: bool) -> Prompt:
    if not line.lstrip().startswith("{"):
        return Prompt(line)
    try:
        row = json.loads(line)
        given = prompt_of(row)
        if not given and not allow_empty:
            raise ValueError("the prompt is empty")
        if isinstance(given, str):
            return Prompt(given)
        if not all(type(token) is int and token >= 0 for token in given):
            raise TypeError("token ids must be integers >= 0")
        return Prompt(ids=tuple(given))
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"line {number} of {file} is not a prompt: expected `prompt` (text or token ids), `text` or"
            f" `turns` ({error})"
        ) from error
