"""What keeps estimates honest: seconds set aside for finding out, and accounts of what guessing brought."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.005
"""The share of all time that may be spent on finding out."""

HEAD_START: Final = 0.5
"""The share of a step that a purse begins with: at first there is most to find out."""

DEEPEST: Final = 2.0
"""A purse holds at most so many steps' time: nobody saves for a spree."""

FORGET: Final = 0.99
"""What a step counts for in an account after the next one."""

ENOUGH: Final = 20.0
"""Steps that an account has to know before anybody stands down for it."""

BEARABLE: Final = 0.01
"""The share of plain decoding's time that a class of requests may lose before it stands down."""


class Purse:
    """Seconds for finding out. What is spent was saved before, a share of every step, and a head start."""

    __slots__ = ("seconds", "spent", "total")

    def __init__(self) -> None:
        self.seconds = self.spent = self.total = 0.0

    def earn(self, step_seconds: float) -> None:
        """A step took so long."""
        if not self.total:
            self.seconds = HEAD_START * step_seconds
        self.total += step_seconds
        self.seconds = min(self.seconds + SHARE * step_seconds, DEEPEST * step_seconds)

    def pay(self, seconds: float) -> bool:
        """Spend so much if it is there."""
        if seconds > self.seconds:
            return False
        self.seconds -= max(seconds, 0.0)
        self.spent += max(seconds, 0.0)
        return True


class Account:
    """What the guesses of a class of requests brought and cost, in seconds of plain decoding."""

    __slots__ = ("_brought", "_cost", "_num", "_plain")

    def __init__(self) -> None:
        self._brought = self._cost = self._plain = self._num = 0.0

    def book(self, brought: float, cost: float, plain: float) -> None:
        """Guesses saved so much time and took so much, in a step that takes `plain` without any."""
        self._num = FORGET * self._num + 1
        self._brought = FORGET * self._brought + brought
        self._cost = FORGET * self._cost + cost
        self._plain = FORGET * self._plain + plain

    @property
    def loses(self) -> bool:
        """Whether guesses cost more than they bring, by more than can be borne."""
        return self._num > ENOUGH and self._cost - self._brought > BEARABLE * self._plain
