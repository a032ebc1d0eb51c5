"""Prompts of a benchmark by category, from files in common formats or generated.

Supported files: Spec-Bench (JSON lines with `question_id`, `category` and `turns`), ShareGPT (a JSON list
with `conversations`), JSON lines with `text` (and `category` or `cat`), and one prompt per line. The suite
`code-editing` is generated: functions of Python's standard library, each with a requested change.
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

from forerun.drafters.documents import numbered_lines, prompt_of
from forerun.errors import UnreadablePrompts

CODE_EDITING: Final = "code-editing"

GROUPS: Final = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "mt-bench"
    ),
    "math_reasoning": "math",
}
"""Spec-Bench's six groups by category: the categories of MT-bench form one of them."""

EDITED_FUNCTIONS: Final = {
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
"""Pure-Python functions of the standard library; the requested change renames a parameter."""

SOURCE_LENGTHS: Final = range(200, 3000)
"""Accepted source lengths in characters, so that a few hundred tokens suffice for the answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with its id and category."""

    id: str
    category: str
    text: str


def read_suite(given: str, per_category: int | None = None) -> list[Question]:
    """The first questions of each category of a suite, at most `per_category`, in the order of the suite."""
    found = list(_code_editing() if given == CODE_EDITING else _read(Path(given)))
    if not found:
        raise UnreadablePrompts(f"{given} has no questions: expected at least one prompt")
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
            f"cannot read questions from {file}: {error}; expected a file or {CODE_EDITING}"
        ) from error
    if text.lstrip().startswith("["):
        yield from _conversations(file, text)
        return
    for number, line in numbered_lines(text):
        yield _line(file, number, line)


def _conversations(file: Path, text: str) -> Iterator[Question]:
    """The first user message of each ShareGPT conversation."""
    try:
        rows: Sequence[Any] = json.loads(text)
        for number, row in enumerate(rows):
            first = next((each for each in row["conversations"] if each["from"] in {"human", "user"}), None)
            if first is not None and str(first["value"]).strip():
                yield Question(str(row.get("id", number)), "sharegpt", str(first["value"]))
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"{file} is not a ShareGPT file: expected a list of objects with `conversations`, each with"
            f" `from` and `value` ({error})"
        ) from error


def _line(file: Path, number: int, line: str) -> Question:
    if not line.lstrip().startswith("{"):
        return Question(str(number), file.stem, line)
    try:
        row = json.loads(line)
        text = prompt_of(row)
        category = str(row.get("category", row.get("cat", file.stem)))
        if not isinstance(text, str) or not text.strip():
            raise TypeError("expected a text that is not empty")
        return Question(str(row.get("question_id", number)), GROUPS.get(category, category), text)
    except (ValueError, TypeError, LookupError) as error:
        raise UnreadablePrompts(
            f"line {number} of {file} is not a question: expected `turns`, `prompt` or `text` ({error})"
        ) from error


def _code_editing() -> Iterator[Question]:
    """Requests to rename a parameter of a function: most of the answer repeats the prompt."""
    for module, names in EDITED_FUNCTIONS.items():
        for name in names:
            function = getattr(import_module(module), name)
            source = inspect.getsource(function).rstrip()
            old = next(iter(inspect.signature(function).parameters))
            if len(source) in SOURCE_LENGTHS:
                change = f"Rename the parameter `{old}` of this function to `new_{old}`."
                text = f"{change} Answer with the whole function.\n\n```python\n{source}\n```"
                yield Question(f"{module}.{name}", CODE_EDITING, text)
