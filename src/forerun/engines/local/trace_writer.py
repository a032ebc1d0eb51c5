"""What happened, round by round, as JSON lines that outlive the run.

The first line of a request is its prompt, then comes a line per round, and the last one is its result.
A draft token's `survival` is the probability that the controller decided with: calibrated online from the
drafter's own estimate, which is `drafter_survival`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import perf_counter
from typing import Any, TextIO

from forerun.drafters.match_tree import SURVIVAL
from forerun.engines.local.request import Update
from forerun.models.tokenization import decode


def own_words(update: Update) -> tuple[int, ...]:
    """The nodes of an update's draft that were said; a stop may have cut some off."""
    return () if update.verdict is None else update.verdict.accepted[: len(update.token_ids)]


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


class TraceWriter:
    """Writes rounds as they come."""

    def __init__(self, file: TextIO, tokenizer: Any) -> None:
        self._file = file
        self._tokenizer = tokenizer
        self._began = perf_counter()

    def prompt(self, name: str, prompt: Sequence[int]) -> None:
        """A request begins."""
        self._write({"id": name, "prompt": self._text(prompt), "prompt_tokens": len(prompt)})

    def update(self, update: Update) -> None:
        """A step did something for a request."""
        if update.verdict is not None:
            draft, said = update.draft, update.token_ids
            stated = [None] * len(draft) if draft.evidence is None else draft.evidence[:, SURVIVAL].tolist()
            self._write(
                {
                    "id": update.id,
                    "seconds": round(perf_counter() - self._began, 6),
                    "said": [self._token(token) for token in said],
                    "accepted": list(own_words(update)),
                    "guesses": [
                        {
                            **self._token(token),
                            "parent": parent,
                            "by": by,
                            "drawn": bool(drawn),
                            "survival": _rounded(used),
                            "drafter_survival": _rounded(estimate),
                        }
                        for token, parent, by, drawn, used, estimate in zip(
                            draft.tokens.tolist(),
                            draft.parents.tolist(),
                            draft.source,
                            draft.sampled,
                            update.survival or [None] * len(draft),
                            stated,
                            strict=True,
                        )
                    ],
                }
            )
        if update.result is not None:
            self._write({"id": update.id, "result": update.result.as_json()})

    def _token(self, token: int) -> dict[str, Any]:
        return {"token": token, "text": self._text([token])}

    def _text(self, tokens: Sequence[int]) -> str:
        return "" if self._tokenizer is None else decode(self._tokenizer, tokens)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
