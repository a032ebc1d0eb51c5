"""Stop conditions of an output, checked on committed tokens only, one after another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from forerun.engines.local.request import FinishReason
from forerun.models.tokenization import IncrementalDetokenizer


class StopChecker:
    """The stop conditions of one output, and its text so far.

    Text that may begin a stop text is held back. The stop text itself is not part of the output.
    """

    def __init__(
        self, tokenizer: Any, stop: Sequence[str | int], eos_token_ids: Collection[int], max_tokens: int
    ) -> None:
        self.reason: FinishReason | None = None
        self.text = ""
        self._stop_token_ids = frozenset(eos_token_ids) | {stop for stop in stop if isinstance(stop, int)}
        self._stop_texts = [stop for stop in stop if isinstance(stop, str)]
        self._max_stop_length = max((len(stop) for stop in self._stop_texts), default=0)
        self._num_remaining = max_tokens
        self._detokenizer = None if tokenizer is None else IncrementalDetokenizer(tokenizer)
        self._num_taken = 0

    def add(self, token: int) -> None:
        """Add a committed token; sets `reason` if the output ends with it."""
        self._num_remaining -= 1
        self._append("" if self._detokenizer is None else self._detokenizer.add(token))
        if self.reason is None and token in self._stop_token_ids:
            self.reason = "stop"
        if self.reason is None and not self._num_remaining:
            self.reason = "length"
        if self.reason is not None:
            self.close(self.reason)

    @property
    def num_remaining(self) -> int:
        """Output tokens left until `max_tokens`."""
        return self._num_remaining

    def close(self, reason: FinishReason) -> None:
        """End the output; text that was held back becomes final. The first reason stays."""
        self.reason = self.reason or reason
        if self._detokenizer is not None:
            detokenizer, self._detokenizer = self._detokenizer, None
            if reason != "error":
                self._append(detokenizer.flush())

    def take_text(self) -> str:
        """The text that became final since the last call."""
        end = len(self.text) - (self._num_held_back() if self.reason is None else 0)
        taken, self._num_taken = self.text[self._num_taken : end], max(self._num_taken, end)
        return taken

    def _append(self, new: str) -> None:
        """Append text; the earliest stop text truncates it."""
        begin = max(0, len(self.text) - self._max_stop_length + 1)
        self.text += new
        found = [index for stop in self._stop_texts if (index := self.text.find(stop, begin)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.reason = "stop"
            self._detokenizer = None

    def _num_held_back(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop text."""
        return max(
            (
                num
                for stop in self._stop_texts
                for num in range(1, min(len(stop), len(self.text) + 1))
                if self.text.endswith(stop[:num])
            ),
            default=0,
        )
