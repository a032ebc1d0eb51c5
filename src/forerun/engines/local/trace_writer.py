"""Writes traces: every step of every request as JSON lines.

The first line of a request is its prompt, followed by one line per step; the last one is its result. Lines
between them have the forward passes of target and draft models.
A draft token's `survival` is the probability with which the controller chose it. The controller calibrates
it online from the drafter's own estimate, `drafter_survival`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol, TextIO

from forerun.engines.local.request import Update
from forerun.models.model_call import ModelCall
from forerun.models.tokenization import decode


def accepted_nodes(update: Update) -> tuple[int, ...]:
    """The accepted nodes of an update's draft, without those that a stop cut off."""
    return () if update.verdict is None else update.verdict.accepted[: len(update.token_ids)]


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


class CallRecorder(Protocol):
    """A model that records its forward passes if `calls` is a list."""

    calls: list[ModelCall] | None


class TraceWriter:
    """Writes each line as soon as its step is over."""

    def __init__(self, file: TextIO, tokenizer: Any) -> None:
        self._file = file
        self._tokenizer = tokenizer
        self._began = perf_counter()
        self._recorders: Mapping[str, CallRecorder] = {}

    def prompt(self, name: str, prompt: Sequence[int]) -> None:
        """Write the first line of a request."""
        self._write({"id": name, "prompt": self._text(prompt), "prompt_tokens": len(prompt)})

    def update(self, update: Update) -> None:
        """Write a step of a request, and its result if it has one."""
        if update.verdict is not None:
            draft = update.draft
            estimates = [None] * len(draft) if draft.survival is None else draft.survival.tolist()
            self._write(
                {
                    "id": update.id,
                    "seconds": round(perf_counter() - self._began, 6),
                    "tokens": [self._token(token) for token in update.token_ids],
                    "accepted": list(accepted_nodes(update)),
                    "draft_tokens": [
                        {
                            **self._token(token),
                            "parent": parent,
                            "drafter": drafter,
                            "sampled": bool(sampled),
                            "survival": _rounded(used),
                            "drafter_survival": _rounded(estimate),
                        }
                        for token, parent, drafter, sampled, used, estimate in zip(
                            draft.tokens.tolist(),
                            draft.parents.tolist(),
                            draft.source,
                            draft.sampled,
                            update.survival or [None] * len(draft),
                            estimates,
                            strict=True,
                        )
                    ],
                }
            )
        if update.result is not None:
            self._write({"id": update.id, "result": update.result.as_json()})
        for model, recorder in self._recorders.items():
            if recorder.calls:
                times = [
                    (round(began - self._began, 6), round(ended - self._began, 6), num_rows)
                    for began, ended, num_rows in recorder.calls
                ]
                self._write({"model": model, "calls": times})
                recorder.calls.clear()

    @contextmanager
    def recording(self, recorders: Mapping[str, CallRecorder]) -> Iterator[None]:
        """Record the forward passes of these models, by name."""
        self._recorders = recorders
        for each in recorders.values():
            each.calls = []
        try:
            yield
        finally:
            self._recorders = {}
            for each in recorders.values():
                each.calls = None

    def _token(self, token: int) -> dict[str, Any]:
        return {"token": token, "text": self._text([token])}

    def _text(self, tokens: Sequence[int]) -> str:
        return "" if self._tokenizer is None else decode(self._tokenizer, tokens)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
