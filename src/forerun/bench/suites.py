"""Prompts of a benchmark by category, from a file or generated.

Spec-Bench's categories are combined into its six groups. The suite `code-editing` is generated: functions of
Python's standard library, each with a requested change.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from forerun.errors import UnreadablePrompts
from forerun.prompts import read_prompt_file

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
    counts: dict[str, int] = defaultdict(int)
    chosen = []
    for each in _code_editing() if given == CODE_EDITING else _read(Path(given)):
        counts[each.category] += 1
        if per_category is None or counts[each.category] <= per_category:
            chosen.append(each)
    return chosen


def _read(file: Path) -> Iterator[Question]:
    """The questions of a file. They are sent as chat messages, so they cannot be token ids."""
    if not file.exists():
        raise UnreadablePrompts(f"{file} does not exist: expected a file of prompts or {CODE_EDITING}")
    for each in read_prompt_file(file):
        if each.ids:
            raise UnreadablePrompts(
                f"prompt {each.id} of {file} has token ids: expected text, which is sent as a chat message"
            )
        yield Question(each.id, GROUPS.get(each.category, each.category), each.text)


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
