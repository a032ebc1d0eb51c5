"""A trace read back: the requests of a run, round by round. Needs no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.errors import UnreadableTrace
from forerun.types import ROOT


@dataclass(slots=True)
class RequestTrace:
    """One request of a trace."""

    id: str
    prompt: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def best_dropped(parents: Sequence[int], kept: Sequence[int], most: int = 8) -> list[int]:
    """The most promising guess that was not kept, and what was guessed behind it: nodes, in order."""
    here = kept[-1] if kept else ROOT
    line: list[int] = []
    for node, parent in enumerate(parents):
        if parent == here and len(line) < most:
            line.append(node)
            here = node
    return line


def read_trace(file: Path) -> list[RequestTrace]:
    """The requests of a trace, in the order they began; a run that was cut off has no results."""
    stories: dict[str, RequestTrace] = {}
    number = 0
    try:
        *lines, _ = file.read_text(encoding="utf-8").split("\n")  # what is behind the last one was cut off
        for number, line in enumerate(lines, start=1):  # noqa: B007
            row = json.loads(line)
            story = stories.setdefault(row["id"], RequestTrace(row["id"]))
            if "prompt" in row:
                story.prompt = str(row["prompt"])
            elif "result" in row:
                story.result = dict(row["result"])
            else:
                story.rounds.append({key: row[key] for key in ("seconds", "said", "accepted", "guesses")})
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableTrace(f"cannot read {file}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableTrace(
            f"line {number} of {file} is not of a trace: `forerun generate --trace` writes them"
        ) from error
    if not stories:
        raise UnreadableTrace(f"{file} is empty: `forerun generate --trace {file}` fills it")
    return list(stories.values())
