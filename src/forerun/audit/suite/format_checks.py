"""Checks of stop strings, structured outputs and tool calls inside runs of accepted draft tokens."""

from __future__ import annotations

import json
from typing import Any, Final

from forerun.audit.suite.finding import Finding, failed, not_applicable, passed
from forerun.audit.suite.output_checks import NUM_TOKENS, REPEATING
from forerun.audit.suite.session import GREEDY, Session
from forerun.errors import RequestRefused
from forerun.servers.completions import Prompt
from forerun.types import SamplingParams

_SCHEMA: Final = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_LIST_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "colours": {
            "type": "array",
            "items": {"type": "string", "enum": ["red", "green", "blue"]},
            "minItems": 3,
            "maxItems": 3,
        },
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["colours", "count"],
    "additionalProperties": False,
}
_STRUCTURED_TOKENS: Final = 96
_STOP_LENGTH: Final = 5
_QUESTION: Final = (
    "Answer in JSON, inside a code block: ```json\n{...}\n```. Which colours does a traffic light have?"
)


def stop_strings(session: Session) -> Finding:
    """A stop string ends the output where it first occurs, also inside a run of accepted draft tokens: no
    text and no token follows it.
    """
    requests = [
        (prompt, whole.text, stop)
        for prompt in (*session.prompts[:2], *REPEATING)
        for whole in (session.generate(prompt, NUM_TOKENS),)
        for stop in _stops(whole.text)
    ]
    if not requests:
        return not_applicable("the server returns no text")
    found = [_stop_fault(session, *request) for request in requests]
    if faults := [fault for fault in found if fault is not None]:
        num_tokens = sum("num_tokens" in fault for fault in faults)
        what = f", {num_tokens} of them only in their token ids" if num_tokens else ""
        return failed(f"{len(faults)} of {len(requests)} outputs go on after their stop string{what}", faults)
    return passed(f"{len(requests)} outputs end at their stop string")


def _stops(text: str) -> list[str]:
    """Pieces of an output, at which it is to stop."""
    starts = (int(len(text) * share) for share in (0.35, 0.6, 0.85))
    pieces = (text[start : start + _STOP_LENGTH] for start in starts)
    return [piece for piece in pieces if len(piece) == _STOP_LENGTH and piece.strip()]


def _stop_fault(session: Session, prompt: Prompt, whole: str, stop: str) -> dict[str, Any] | None:
    """The output with a stop string, if it does not end there."""
    output = session.generate(prompt, NUM_TOKENS, stop=[stop])
    expected = whole[: whole.index(stop)]
    row = {"prompt": prompt.text, "stop": stop, "expected": expected, "found": output.text}
    if output.text != expected or output.finish_reason != "stop":
        return row | {"finish_reason": output.finish_reason}
    if session.baseline is not None:
        reference = session.generate(prompt, NUM_TOKENS, server=session.baseline, stop=[stop])
        if reference.text == output.text and reference.num_tokens != output.num_tokens:
            return row | {"num_tokens": output.num_tokens, "expected_num_tokens": reference.num_tokens}
    return None


def json_schema(session: Session) -> Finding:
    """Structured outputs follow their schema, greedy and sampled."""
    faults: list[dict[str, Any]] = []
    refused = ""
    num = 0
    for name, schema in (("ok", _SCHEMA), ("colours", _LIST_SCHEMA)):
        form = {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}
        for sampling in (GREEDY, *(SamplingParams(temperature=1.0, seed=seed) for seed in range(3))):
            try:
                answer = _chat(session, sampling, response_format=form)
            except RequestRefused as error:
                refused = str(error)
                continue
            num += 1
            choice = answer["choices"][0]
            text = str(choice["message"].get("content") or "")
            if problem := _schema_fault(text, name, str(choice.get("finish_reason"))):
                faults.append({"schema": name, "seed": sampling.seed, "output": text, "fault": problem})
    if not num:
        return not_applicable(f"structured outputs are refused: {refused}")
    if faults:
        return failed(f"{len(faults)} of {num} outputs do not follow their schema", faults)
    return passed(f"{num} outputs follow their schema")


def _chat(session: Session, sampling: SamplingParams, **extra: Any) -> dict[str, Any]:
    """A chat completion of the candidate."""
    dialect = session.candidate.dialect
    body = {
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": _STRUCTURED_TOKENS,
        **dialect.settings(sampling),
        **extra,
    }
    return session.candidate.post("/chat/completions", body)


def _schema_fault(text: str, name: str, finish_reason: str) -> str:
    """What is wrong with an output under one of the two schemas; empty if nothing is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        if finish_reason == "length" and not text.strip().startswith("`"):
            return ""  # cut off at the maximum number of tokens: whitespace is not bounded by a schema
        return f"not JSON: {error}"
    if name == "ok":
        is_valid = isinstance(value, dict) and value.keys() == {"ok"} and isinstance(value["ok"], bool)
    else:
        is_valid = (
            isinstance(value, dict)
            and value.keys() == {"colours", "count"}
            and len(value["colours"]) == 3
            and set(value["colours"]) <= {"red", "green", "blue"}
            and type(value["count"]) is int
            and 1 <= value["count"] <= 9
        )
    return "" if is_valid else "not an instance of the schema"


def tool_calls(session: Session) -> Finding:
    """The arguments of a forced tool call follow their schema, streamed and not."""
    function = {"name": "set_colours", "description": "Set colours.", "parameters": _LIST_SCHEMA}
    settings = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "set_colours"}},
    }
    try:
        answer = _chat(session, GREEDY, **settings)
    except RequestRefused as error:
        return not_applicable(f"tool calls are refused: {error}")
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    if not calls:
        return not_applicable("the server answers a forced tool call with text")
    whole = str(calls[0]["function"]["arguments"])
    finish_reason = str(answer["choices"][0].get("finish_reason"))
    if fault := _schema_fault(whole, "colours", finish_reason):
        return failed(
            "the arguments of a tool call do not follow their schema", [{"found": whole, "fault": fault}]
        )
    body = {
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": _STRUCTURED_TOKENS,
        **session.candidate.dialect.settings(GREEDY),
        **settings,
    }
    streamed = ""
    with session.candidate.stream("/chat/completions", body) as events:
        for event in events:
            for choice in event.get("choices") or ():
                for call in (choice.get("delta") or {}).get("tool_calls") or ():
                    streamed += (call.get("function") or {}).get("arguments") or ""
    if streamed != whole:
        return failed(
            "a streamed tool call differs from one that is not", [{"whole": whole, "streamed": streamed}]
        )
    return passed("a tool call follows its schema, streamed and not")
