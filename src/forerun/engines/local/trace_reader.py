"""Reads traces back: the requests of a run, step by step. Needs no model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forerun.errors import UnreadableTrace
from forerun.json_records import rename_keys
from forerun.models.model_call import ModelCall
from forerun.types import ROOT

_OLD_KEYS: Final = {"said": "tokens", "guesses": "draft_tokens", "by": "drafter", "drawn": "sampled"}
"""Keys of traces written by earlier versions, and their present names."""

MAX_REJECTED: Final = 8
"""Rejected draft tokens of a step that are shown."""


@dataclass(slots=True)
class RequestTrace:
    """One request of a trace."""

    id: str
    prompt: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)


def best_rejected(parents: Sequence[int], accepted: Sequence[int]) -> list[int]:
    """The most probable rejected draft token and its descendants, as nodes of the draft in order."""
    last = accepted[-1] if accepted else ROOT
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == last and len(path) < MAX_REJECTED:
            path.append(node)
            last = node
    return path


def read_trace(file: Path) -> list[RequestTrace]:
    """The requests of a trace, in the order of their first lines; an interrupted run has no results."""
    traces: dict[str, RequestTrace] = {}
    number = 0
    try:
        *lines, _ = file.read_text(encoding="utf-8").split("\n")  # an interrupted run may end within a line
        for number, line in enumerate(lines, start=1):  # noqa: B007
            row = json.loads(line)
            if "calls" in row:
                continue
            trace = traces.setdefault(row["id"], RequestTrace(row["id"]))
            if "prompt" in row:
                trace.prompt = str(row["prompt"])
            elif "result" in row:
                trace.result = dict(row["result"])
            else:
                trace.steps.append(_read_step(row))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableTrace(f"cannot read {file}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableTrace(
            f"line {number} of {file} is not a line of a trace; `forerun generate --trace` writes traces"
        ) from error
    if not traces:
        raise UnreadableTrace(f"{file} is empty; `forerun generate --trace {file}` writes a trace to it")
    return list(traces.values())


def read_calls(file: Path) -> dict[str, list[ModelCall]]:
    """The forward passes of a readable trace by model."""
    calls: dict[str, list[ModelCall]] = {}
    for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        if "calls" in row:
            calls.setdefault(str(row["model"]), []).extend(ModelCall(*each) for each in row["calls"])
    return calls


def _read_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """One step of a trace."""
    step = rename_keys(row, _OLD_KEYS)
    draft_tokens = [rename_keys(each, _OLD_KEYS) for each in step["draft_tokens"]]
    return {key: step[key] for key in ("seconds", "tokens", "accepted")} | {"draft_tokens": draft_tokens}
