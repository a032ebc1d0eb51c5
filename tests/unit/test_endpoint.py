"""Tokens are read as servers show them, whatever their format, and never from text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun.audit.prompts import TEXTS, read_prompts
from forerun.audit.rounding_error import error_of, largest
from forerun.audit.sample_journal import Batch, Journal
from forerun.audit.sampled.against_model import TokenReader
from forerun.errors import ConfigurationError, UnreadableAnswer, UnreadablePrompts, VocabularyMismatch
from forerun.servers.dialects import DIALECTS, LLAMA_CPP_PYTHON, VLLM, spoken_by
from forerun.servers.endpoint import END, looked_up, read_answers
from forerun.types import SamplingParams


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"token_ids": [5, 2]}, (5, 2)),
        ({"logprobs": {"content": [{"id": 5, "token": "a", "bytes": [97]}]}}, (5,)),
        ({"logprobs": {"content": [{"token": "�", "bytes": [0xE2, 0x82]}]}}, ("\\xe2\\x82",)),
        ({"logprobs": {"tokens": ["token_id:7", "token_id:"]}}, (7, "token_id:")),
        ({"logprobs": {"tokens": [" a", "b"]}}, (" a", "b")),
        ({"logprobs": {"tokens": [" a"]}, "finish_reason": "stop"}, (" a", END)),
        ({"token_ids": [5, 2], "finish_reason": "stop"}, (5, 2, END)),
        ({"token_ids": [], "text": "", "finish_reason": "stop"}, (END,)),
    ],
)
def test_tokens_are_ids_or_bytes_or_spellings(choice: dict[str, Any], tokens: tuple[Any, ...]) -> None:
    (answer,) = read_answers({"choices": [choice]}, 1, 3)
    assert answer.tokens == tokens


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_answers_that_show_no_tokens_are_not_cut_into_some(reason: str) -> None:
    with pytest.raises(UnreadableAnswer, match="return_token_ids"):
        read_answers({"choices": [{"text": "hello", "finish_reason": reason}]}, 1, 3)


class _Model:
    """Two tokens, one of which ends an answer."""

    vocab_size = 8
    ends = frozenset([2])

    def spelled(self, text: str) -> list[int]:
        return {" a": [5], "b": [6, 7]}.get(text, [])


def test_the_end_of_an_answer_counts_once_whether_it_is_shown_or_not() -> None:
    read = TokenReader(_Model())  # type: ignore[arg-type]
    assert read((5, 2, END)) == read((5, END)) == read((" a", END)) == (5, 2)
    assert read((END,)) == (2,)
    assert read((5, 6)) == (5, 6)


def test_tokens_that_the_reference_cannot_place_are_an_error() -> None:
    read = TokenReader(_Model())  # type: ignore[arg-type]
    with pytest.raises(UnreadableAnswer, match="2 tokens that read like this"):
        read(("b",))
    with pytest.raises(VocabularyMismatch, match="token 9"):
        read((9,))


def test_rounding_that_cannot_be_measured_must_be_given() -> None:
    assert error_of({1: -0.5}, {2: -0.5}) is None
    assert error_of({1: -0.5, 2: -1.0}, {1: -0.6, 2: float("-inf")}) == pytest.approx(0.1)
    assert largest([None, 0.01]) == 0.01
    with pytest.raises(UnreadableAnswer, match="--epsilon"):
        largest([None])
    with pytest.raises(UnreadableAnswer, match="no rounding explains"):
        largest([0.01, 2.0])


def test_audits_against_a_server_need_no_transformers() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None;"
        "import forerun.audit.sampled.prepare, forerun.audit.parity.run;"
        "import forerun.audit.parity.divergence_rate, forerun.cli.audit.sampled, forerun.cli.audit.parity"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_answer_too_few_is_noticed() -> None:
    with pytest.raises(UnreadableAnswer, match="1 answers where it was asked for 2"):
        read_answers({"choices": [{"token_ids": [1]}]}, 2, 3)


@pytest.mark.parametrize(
    "answer",
    [
        {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 3}}},
        {"timings": {"draft_n": 5, "draft_n_accepted": 3}},
    ],
)
def test_accepted_guesses_are_read_where_the_server_tells(answer: dict[str, Any]) -> None:
    first, second = read_answers({**answer, "choices": [{"token_ids": [1]}, {"token_ids": [2]}]}, 2, 3)
    assert (first.num_accepted, second.num_accepted) == (3, None)


def test_log_probabilities_of_both_formats() -> None:
    old = {"tokens": ["token_id:4"], "top_logprobs": [{"token_id:4": -0.5, "token_id:9": -1.5}]}
    new = {"content": [{"id": 4, "top_logprobs": [{"id": 4, "logprob": -0.5}, {"id": 9, "logprob": -1.5}]}]}
    for logprobs in (old, new):
        (answer,) = read_answers({"choices": [{"logprobs": logprobs}]}, 1, 1)
        assert answer.logprobs == ({4: -0.5, 9: -1.5},)


def test_every_setting_is_sent_by_its_name() -> None:
    sampling = SamplingParams(top_k=8, repetition_penalty=1.1)
    assert VLLM.settings(sampling)["repetition_penalty"] == 1.1
    assert LLAMA_CPP_PYTHON.settings(sampling)["repeat_penalty"] == 1.1
    for dialect in DIALECTS.values():
        body = dialect.settings(SamplingParams())
        assert body["min_p"] == 0
        assert body["top_k"] in (0, -1)


def test_a_server_that_repeats_its_seeds_is_given_new_ones() -> None:
    seeds = {LLAMA_CPP_PYTHON.settings(SamplingParams())["seed"] for _ in range(8)}
    assert len(seeds) > 1
    assert "seed" not in VLLM.settings(SamplingParams())
    assert LLAMA_CPP_PYTHON.settings(SamplingParams(seed=3))["seed"] == 3


def test_unknown_owners_are_spoken_to_like_vllm() -> None:
    assert spoken_by("somebody") is VLLM
    assert spoken_by("me") is LLAMA_CPP_PYTHON


def test_what_a_look_up_would_guess() -> None:
    assert looked_up([1, 2, 3, 1, 4, 1]) == {2, 4}
    assert looked_up([1, 2]) == set()
    assert looked_up([]) == set()


def test_prompts_of_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": [1, 2]}\n{"turns": ["three", "four"]}\nplain text\n')
    prompts = read_prompts(file)
    assert [each.text for each in prompts] == ["one", "", "three", "plain text"]
    assert prompts[1].ids == (1, 2)
    assert [each.text for each in read_prompts(None)] == list(TEXTS)
    file.write_text('{"prompt": [1, "x"]}\n')
    with pytest.raises(UnreadablePrompts, match="line 1"):
        read_prompts(file)


def test_a_journal_is_taken_up_again_even_if_its_last_line_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    journal = Journal(file, {"of": 1})
    journal.keep(Batch(0, [(1, 2)], [(3, "x")]))
    journal.close()
    file.write_text(file.read_text() + '{"case": 1, "tes')
    again = Journal(file, {"of": 1}, resume=True)
    again.keep(Batch(1, [(5,)], []))
    again.close()
    third = Journal(file, {"of": 1}, resume=True)
    assert third.earlier() == [Batch(0, [(1, 2)], [(3, "x")]), Batch(1, [(5,)], [])]
    third.close()
    with pytest.raises(ConfigurationError, match="another question; these differ: of"):
        Journal(file, {"of": 2}, resume=True)
