"""When an answer is over. Looks at committed tokens only, one after another; guesses never stop anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from forerun.engines.local.request import FinishReason
from forerun.models.tokenization import IncrementalDetokenizer


class StopChecker:
    """The stops of one answer, and its text as far as it is sure.

    Text that may turn out to be the beginning of a stop is held back; a stop's own text is cut off.
    """

    def __init__(
        self, tokenizer: Any, stops: Sequence[str | int], ends: Collection[int], max_tokens: int
    ) -> None:
        self.reason: FinishReason | None = None
        self.text = ""
        self._tokens = frozenset(ends) | {stop for stop in stops if isinstance(stop, int)}
        self._texts = [stop for stop in stops if isinstance(stop, str)]
        self._longest = max((len(stop) for stop in self._texts), default=0)
        self._left = max_tokens
        self._spelling = None if tokenizer is None else IncrementalDetokenizer(tokenizer)
        self._shown = 0

    def add(self, token: int) -> None:
        """One more token is said; afterwards `reason` tells whether it was the last."""
        self._left -= 1
        self._read("" if self._spelling is None else self._spelling.add(token))
        if self.reason is None and token in self._tokens:
            self.reason = "stop"
        if self.reason is None and not self._left:
            self.reason = "length"
        if self.reason is not None:
            self.close(self.reason)

    @property
    def left(self) -> int:
        """How many tokens may still be said."""
        return self._left

    def close(self, reason: FinishReason) -> None:
        """No more tokens will come: what was unsure of the text is as sure as it gets."""
        self.reason = self.reason or reason
        if self._spelling is not None:
            spelling, self._spelling = self._spelling, None
            if reason != "error":
                self._read(spelling.rest())

    def show(self) -> str:
        """The text that became sure since the last time."""
        last = len(self.text) - (self._held() if self.reason is None else 0)
        shown, self._shown = self.text[self._shown : last], max(self._shown, last)
        return shown

    def _read(self, new: str) -> None:
        """More text: cut it at a stop, the earliest."""
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += new
        found = [place for stop in self._texts if (place := self.text.find(stop, begin)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.reason = "stop"
            self._spelling = None

    def _held(self) -> int:
        """How much of the end may still become a stop."""
        return max(
            (
                num
                for stop in self._texts
                for num in range(1, min(len(stop), len(self.text) + 1))
                if self.text.endswith(stop[:num])
            ),
            default=0,
        )
