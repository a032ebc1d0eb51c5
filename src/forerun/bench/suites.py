"""What is asked in a benchmark: questions by category, from files in the usual formats or made on the spot.

A file is Spec-Bench's (JSON lines with `question_id`, `category` and `turns`), ShareGPT's (a JSON list with
`conversations`), JSON lines with `text` (and `category` or `cat`), or one prompt a line. `code-editing` is no
file: functions of Python's standard library, each with a change to be made.
"""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from forerun.drafters.documents import asked_in, numbered_lines
from forerun.errors import UnreadablePrompts

CODE_EDITING: Final = "code-editing"

GROUPS: Final = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "mt-bench"
    ),
    "math_reasoning": "math",
}
"""Spec-Bench's six groups: MT-bench's categories are one of them."""

EDITED: Final = {
    "ast": ("literal_eval", "dump", "get_docstring", "copy_location"),
    "base64": ("b32encode", "b64decode", "decodebytes"),
    "calendar": ("leapdays", "timegm"),
    "colorsys": ("rgb_to_hls", "hls_to_rgb", "rgb_to_hsv", "hsv_to_rgb"),
    "copy": ("deepcopy",),
    "difflib": ("get_close_matches", "context_diff", "restore"),
    "filecmp": ("cmp", "cmpfiles"),
    "fnmatch": ("filter", "fnmatch"),
    "getopt": ("getopt", "do_longs", "long_has_args"),
    "heapq": ("nlargest", "nsmallest"),
    "html": ("escape", "unescape"),
    "inspect": ("cleandoc", "getmodulename"),
    "linecache": ("lazycache", "updatecache"),
    "quopri": ("encode", "decode"),
    "shlex": ("join", "split"),
    "shutil": ("copyfileobj", "move", "copymode"),
    "statistics": ("mean", "median", "multimode", "harmonic_mean"),
    "string": ("capwords",),
    "tempfile": ("mkdtemp", "mkstemp"),
    "textwrap": ("dedent", "indent", "shorten", "wrap"),
    "urllib.parse": ("urljoin", "parse_qs", "urlencode", "unquote"),
}
"""Functions of the standard library, written in Python, in which something is to be renamed."""

LENGTHS: Final = range(200, 3000)
"""Characters of a function that is asked about: what can be answered in a few hundred tokens."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a user asks."""

    id: str
    category: str
    text: str


def read_suite(given: str, per_category: int | None = None) -> list[Question]:
    """The questions of a suite, at most so many of each category, in its order."""
    found = list(_code_editing() if given == CODE_EDITING else _read(Path(given)))
    if not found:
        raise UnreadablePrompts(f"{given} has no questions")
    counts: dict[str, int] = defaultdict(int)
    chosen = []
    for each in found:
        counts[each.category] += 1
        if per_category is None or counts[each.category] <= per_category:
            chosen.append(each)
    return chosen


def _read(file: Path) -> Iterator[Question]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadablePrompts(
            f"cannot read questions from {file}: {error}; a suite is a file, or {CODE_EDITING}"
        ) from error
    if text.lstrip().startswith("["):
        yield from _conversations(file, text)
        return
    for number, line in numbered_lines(text):
        yield _line(file, number, line)


def _conversations(file: Path, text: str) -> Iterator[Question]:
    """What people said first in each conversation of ShareGPT."""
    try:
        rows: Sequence[Any] = json.loads(text)
        for number, row in enumerate(rows):
            first = next((each for each in row["conversations"] if each["from"] in {"human", "user"}), None)
            if first is not None and str(first["value"]).strip():
                yield Question(str(row.get("id", number)), "sharegpt", str(first["value"]))
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"{file} is no list of conversations as ShareGPT's files are: each needs `conversations` with"
            f" `from` and `value` ({error})"
        ) from error


def _line(file: Path, number: int, line: str) -> Question:
    if not line.lstrip().startswith("{"):
        return Question(str(number), file.stem, line)
    try:
        row = json.loads(line)
        text = asked_in(row)
        category = str(row.get("category", row.get("cat", file.stem)))
        if not isinstance(text, str) or not text.strip():
            raise TypeError("a question is a text that is not empty")
        return Question(str(row.get("question_id", number)), GROUPS.get(category, category), text)
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"line {number} of {file} is no question: it needs `turns`, `prompt` or `text` ({error})"
        ) from error


def _code_editing() -> Iterator[Question]:
    """A function, and a parameter of it to be renamed: the answer is most of the question."""
    for module, names in EDITED.items():
        for name in names:
            function = getattr(import_module(module), name)
            source = inspect.getsource(function).rstrip()
            old = next(iter(inspect.signature(function).parameters))
            if len(source) in LENGTHS:
                change = f"Rename the parameter `{old}` of this function to `new_{old}`."
                text = f"{change} Answer with the whole function.\n\n```python\n{source}\n```"
                yield Question(f"{module}.{name}", CODE_EDITING, text)
