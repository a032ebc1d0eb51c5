"""Stop conditions, and the text that is final after each token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.engines.local.stop_checker import StopChecker
from forerun.models.tokenization import IncrementalDetokenizer


class Bytes:
    """A tokenizer whose tokens are bytes; 0 is a special token."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(token for token in tokens if token).decode(errors="replace")


def feed(
    text: str, stops: Sequence[str | int] = (), eos_token_ids: Sequence[int] = (), max_tokens: int = 100
) -> tuple[StopChecker, list[str]]:
    """Add a text byte by byte until it stops; returns the text taken after each byte."""
    checker, taken = StopChecker(Bytes(), stops, eos_token_ids, max_tokens), []
    for token in text.encode():
        checker.add(token)
        taken.append(checker.take_text())
        if checker.reason:
            break
    return checker, taken


def test_a_character_is_final_once_all_its_bytes_are_committed() -> None:
    checker, taken = feed("aé☃")
    assert taken == ["a", "", "é", "", "", "☃"]
    assert checker.reason is None


@given(text=st.text(max_size=20), cut=st.integers(0, 60))
def test_the_pieces_of_the_detokenizer_add_up_to_the_text(text: str, cut: int) -> None:
    raw = [token for token in text.encode()[:cut] if token]
    detokenizer = IncrementalDetokenizer(Bytes())
    pieces = [*(detokenizer.add(token) for token in raw), detokenizer.flush()]
    assert "".join(pieces) == Bytes().decode(raw, skip_special_tokens=True)


def test_a_stop_text_ends_the_output_and_is_not_part_of_it() -> None:
    checker, taken = feed("one END two", ["END"])
    assert (checker.reason, checker.text) == ("stop", "one ")
    assert "".join(taken) == "one "
    assert checker.num_remaining == 100 - len("one END")


def test_a_possible_beginning_of_a_stop_text_is_held_back() -> None:
    checker, taken = feed("xENxEND", ["END"])
    assert taken == ["x", "", "", "ENx", "", "", ""]
    assert checker.text == "xENx"


def test_the_earliest_stop_text_ends_the_output() -> None:
    checker, _ = feed("abcdef", ["cd", "bc"])
    assert checker.text == "a"


def test_a_stop_token_or_max_tokens_ends_the_output() -> None:
    checker, _ = feed("abc", [ord("b")])
    assert (checker.reason, checker.text) == ("stop", "ab")
    checker, _ = feed("abc", eos_token_ids=[ord("c")])
    assert (checker.reason, checker.text) == ("stop", "abc")
    checker, _ = feed("abc", max_tokens=2)
    assert (checker.reason, checker.text) == ("length", "ab")


def test_a_cancelled_output_keeps_the_text_that_was_held_back() -> None:
    checker = StopChecker(Bytes(), ["END"], [], 100)
    for token in "xEé".encode()[:-1]:
        checker.add(token)
    assert checker.take_text() == "x"
    checker.close("cancelled")
    assert checker.take_text() == "E\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stops", [[], [7]])
def test_without_a_tokenizer_there_is_no_text(stops: list[int]) -> None:
    checker = StopChecker(None, stops, [], 3)
    for token in (5, 7, 9):
        checker.add(token)
        if checker.reason:
            break
    assert checker.text == ""
    assert checker.reason == ("stop" if stops else "length")
