"""When an answer is over, and what of its text can be shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.engines.local.stop_checker import StopChecker
from forerun.models.tokenization import IncrementalDetokenizer


class Bytes:
    """A tokenizer whose tokens are bytes; 0 steers the model and is not spelled."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(token for token in tokens if token).decode(errors="replace")


def say(
    text: str, stops: Sequence[str | int] = (), ends: Sequence[int] = (), most: int = 100
) -> tuple[StopChecker, list[str]]:
    """An answer byte by byte, until it is over; what was shown after each."""
    ending, shown = StopChecker(Bytes(), stops, ends, most), []
    for token in text.encode():
        ending.add(token)
        shown.append(ending.show())
        if ending.reason:
            break
    return ending, shown


def test_characters_are_shown_when_they_are_whole() -> None:
    ending, shown = say("aé☃")
    assert shown == ["a", "", "é", "", "", "☃"]
    assert ending.reason is None


@given(text=st.text(max_size=20), cut=st.integers(0, 60))
def test_what_is_shown_adds_up_to_the_text(text: str, cut: int) -> None:
    raw = [token for token in text.encode()[:cut] if token]
    spelling = IncrementalDetokenizer(Bytes())
    pieces = [*(spelling.add(token) for token in raw), spelling.rest()]
    assert "".join(pieces) == Bytes().decode(raw, skip_special_tokens=True)


def test_a_stop_text_ends_the_answer_and_is_cut_off() -> None:
    ending, shown = say("one END two", ["END"])
    assert (ending.reason, ending.text) == ("stop", "one ")
    assert "".join(shown) == "one "
    assert ending.left == 100 - len("one END")


def test_what_may_become_a_stop_is_held_back() -> None:
    ending, shown = say("xENxEND", ["END"])
    assert shown == ["x", "", "", "ENx", "", "", ""]
    assert ending.text == "xENx"


def test_the_earliest_stop_counts() -> None:
    ending, _ = say("abcdef", ["cd", "bc"])
    assert ending.text == "a"


def test_a_token_or_the_length_ends_the_answer() -> None:
    ending, _ = say("abc", [ord("b")])
    assert (ending.reason, ending.text) == ("stop", "ab")
    ending, _ = say("abc", ends=[ord("c")])
    assert (ending.reason, ending.text) == ("stop", "abc")
    ending, _ = say("abc", most=2)
    assert (ending.reason, ending.text) == ("length", "ab")


def test_an_answer_that_is_cut_short_keeps_what_was_said() -> None:
    ending = StopChecker(Bytes(), ["END"], [], 100)
    for token in "xEé".encode()[:-1]:
        ending.add(token)
    assert ending.show() == "x"
    ending.close("cancelled")
    assert ending.show() == "E\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stops", [[], [7]])
def test_without_a_tokenizer_there_is_no_text(stops: list[int]) -> None:
    ending = StopChecker(None, stops, [], 3)
    for token in (5, 7, 9):
        ending.add(token)
        if ending.reason:
            break
    assert ending.text == ""
    assert ending.reason == ("stop" if stops else "length")
