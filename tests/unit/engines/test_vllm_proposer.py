"""The drafter for vLLM's hook, without vLLM: rows that move, requests that end, errors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.engines.vllm import LookupProposer
from forerun.engines.vllm.proposer import RowTracker
from forerun.engines.vllm.stats import ERRORS
from forerun.errors import ConfigurationError
from forerun.types import Draft, RequestView, Verdict

VOCAB = 100


def vllm_config(*, guesses: int = 4, seqs: int = 4, **forerun: Any) -> Any:
    return SimpleNamespace(
        additional_config={"forerun": forerun} if forerun else {},
        speculative_config=SimpleNamespace(num_speculative_tokens=guesses),
        scheduler_config=SimpleNamespace(max_num_seqs=seqs),
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB, tokenizer="nowhere"),
    )


def proposed(
    drafter: LookupProposer, texts: Sequence[Sequence[int]], said: list[list[int]] | None = None
) -> list[list[int]]:
    """What the drafter guesses for rows with these texts, padded with rubbish as vLLM's buffer is."""
    buffer = np.full((len(texts) + 2, 200), 77, dtype=np.int32)
    for row, text in enumerate(texts):
        buffer[row, : len(text)] = text
    lengths = np.array([len(text) for text in texts] + [0, 0], dtype=np.int32)
    return drafter.propose(said or [[text[-1]] for text in texts], lengths, buffer, slot_mappings=None)


def text_of(number: int, length: int) -> list[int]:
    """A text of its own for every number; it repeats itself."""
    return [10 * number + token % 7 for token in range(length)]


def test_it_guesses_what_followed() -> None:
    (guesses,) = proposed(LookupProposer(vllm_config()), [text_of(1, 30)])
    assert guesses == text_of(1, 34)[30:]


@pytest.mark.parametrize("name", ["ngram", "suffix", "auto"])
def test_guesses_are_no_more_than_asked_for(name: str) -> None:
    for settings, most in (({}, 4), ({"max_draft": 2}, 2), ({"max_draft": 50}, 4)):
        drafter = LookupProposer(vllm_config(drafters=(name,), **settings))
        (guesses,) = proposed(drafter, [text_of(1, 30)])
        assert 0 < len(guesses) <= most


def test_their_number_depends_on_what_is_known() -> None:
    drafter = LookupProposer(vllm_config(guesses=16))
    sure, unsure, new = proposed(drafter, [text_of(1, 60), [1, 2, 3, 1, 4, 5, 1, 6, 7, 1], [50, 51, 52]])
    assert len(sure) == 16
    assert len(unsure) < 16
    assert len(new) < 4


def test_a_prefill_that_is_not_over_gets_no_guesses() -> None:
    guesses = proposed(LookupProposer(vllm_config()), [text_of(1, 30), text_of(2, 30)], said=[[], [21]])
    assert guesses[0] == []
    assert guesses[1]


def test_rows_that_move_keep_their_requests() -> None:
    drafter = LookupProposer(vllm_config())
    lengths = {number: 20 + number for number in range(4)}
    order = [0, 1, 2, 3]
    rng = np.random.default_rng(0)
    for _ in range(30):
        guesses = proposed(drafter, [text_of(number, lengths[number]) for number in order])
        for number, guess in zip(order, guesses, strict=True):
            ahead = text_of(number, lengths[number] + 4)[lengths[number] :]
            assert guess == ahead[: len(guess)]
            lengths[number] += int(rng.integers(1, 4))
        rng.shuffle(order)
    assert len(drafter.rows) == 4, "everybody was found again"


def test_a_row_with_somebody_new_knows_nothing_of_the_one_before() -> None:
    drafter = LookupProposer(vllm_config())
    proposed(drafter, [[1, 2, 3, 4, 5, 6]])
    (guesses,) = proposed(drafter, [[9, 9, 9, 1, 2, 3, 8, 1, 2]])
    assert guesses[:1] == [3]
    assert 4 not in guesses


def test_requests_that_ended_are_forgotten() -> None:
    drafter = LookupProposer(vllm_config(seqs=3))
    rng = np.random.default_rng(0)
    for _ in range(50):
        proposed(drafter, rng.integers(0, VOCAB, (3, 20)).tolist())
    assert len(drafter.rows) == 6
    assert len(drafter.guesser.drafters["suffix"].drafter._requests) == 6  # type: ignore[attr-defined]


def test_twins_have_a_seat_each() -> None:
    rows = RowTracker(most=8)
    text = np.array([1, 2, 3], dtype=np.int32)
    seats, _ = rows.seat([0, 1], [text, text])
    assert seats[0] is not seats[1]
    again, _ = rows.seat([0, 1], [np.append(text, 4), np.append(text, 5)])
    assert again == seats
    swapped, _ = rows.seat([0, 1], [np.array([1, 2, 3, 5, 6]), np.array([1, 2, 3, 4, 7])])
    assert swapped == [seats[1], seats[0]]


class Teachable:
    """Guesses one thing and listens."""

    def __init__(self, guess: list[int]) -> None:
        self.guess = guess
        self.heard: list[Verdict] = []

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [Draft.chain(self.guess) for _ in views]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        self.heard.append(verdict)

    def forget(self, id: str) -> None:
        pass


def test_the_drafter_hears_what_became_of_its_guesses() -> None:
    drafter = LookupProposer(vllm_config())
    drafter.guesser.drafters["suffix"].drafter = teachable = Teachable([5, 6, 7])
    proposed(drafter, [[1, 2]])
    proposed(drafter, [[1, 2, 5, 6, 9]], said=[[5, 6, 9]])
    proposed(drafter, [[1, 2, 5, 6, 9, 4]], said=[[4]])
    assert teachable.heard == [Verdict((0, 1), 9), Verdict((), 4)]


def test_errors_cost_guesses_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    drafter = LookupProposer(vllm_config())
    drafter.guesser.drafters["suffix"].drafter = Teachable([VOCAB])
    with caplog.at_level(logging.ERROR, logger="vllm.forerun"):
        for _ in range(3):
            assert proposed(drafter, [[1, 2], [3, 4]]) == [[], []]
        assert drafter.propose([[1]], np.array([1]), None) == [[]]  # type: ignore[arg-type]
    assert drafter.guesser.tally.total(ERRORS) == 6
    assert len(caplog.records) == 2, "the drafter's once, and ours"


def test_what_this_hook_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="share_outputs"):
        LookupProposer(vllm_config(share_outputs=True))
    with pytest.raises(ConfigurationError, match="cannot load a tokenizer"):
        LookupProposer(vllm_config(corpora=("corpus.fri",)))
