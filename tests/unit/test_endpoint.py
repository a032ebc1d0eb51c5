"""Tokens are parsed from every response format, and never from text; dialects and journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.audit.rounding_error import max_error, rms_difference
from forerun.audit.sample_journal import SampleBatch, SampleJournal
from forerun.audit.sampled.against_model import TokenReader
from forerun.audit.sampled.lookup_candidates import lookup_candidates
from forerun.errors import ConfigurationError, UnreadableAnswer, VocabularyMismatch
from forerun.servers.completions import END, parse_response
from forerun.servers.dialects import DIALECTS, LLAMA_CPP_PYTHON, VLLM, detect_dialect
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
def test_tokens_are_parsed_as_ids_bytes_or_text(choice: dict[str, Any], tokens: tuple[Any, ...]) -> None:
    (completion,) = parse_response({"choices": [choice]}, 1, 3)
    assert completion.tokens == tokens


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_response_without_tokens_is_an_error(reason: str) -> None:
    with pytest.raises(UnreadableAnswer, match="return_token_ids"):
        parse_response({"choices": [{"text": "hello", "finish_reason": reason}]}, 1, 3)


class _Model:
    """A reference model with one end-of-sequence token."""

    vocab_size = 8
    ends = frozenset([2])

    def tokens_for_text(self, text: str) -> list[int]:
        return {" a": [5], "b": [6, 7]}.get(text, [])


def test_the_end_of_a_completion_counts_once_whether_or_not_the_server_returns_it() -> None:
    read = TokenReader(_Model())  # type: ignore[arg-type]
    assert read((5, 2, END)) == read((5, END)) == read((" a", END)) == (5, 2)
    assert read((END,)) == (2,)
    assert read((5, 6)) == (5, 6)


def test_tokens_that_the_reference_cannot_map_are_an_error() -> None:
    read = TokenReader(_Model())  # type: ignore[arg-type]
    with pytest.raises(UnreadableAnswer, match=r"'b'.* 2 tokens.*--baseline"):
        read(("b",))
    with pytest.raises(VocabularyMismatch, match="token 9"):
        read((9,))


def test_rounding_that_cannot_be_measured_must_be_set() -> None:
    assert rms_difference({1: -0.5}, {2: -0.5}) is None
    assert rms_difference({1: -0.5, 2: -1.0}, {1: -0.6, 2: float("-inf")}) == pytest.approx(0.1)
    assert max_error([None, 0.01]) == 0.01
    with pytest.raises(UnreadableAnswer, match="--epsilon"):
        max_error([None])
    with pytest.raises(UnreadableAnswer, match=r"off by 2,.*--epsilon"):
        max_error([0.01, 2.0])


def test_a_missing_choice_is_an_error() -> None:
    with pytest.raises(UnreadableAnswer, match=r"1 choices instead of 2.*--choices"):
        parse_response({"choices": [{"token_ids": [1]}]}, 2, 3)


@pytest.mark.parametrize(
    "response",
    [
        {"metrics": {"speculative_decoding": {"num_accepted_draft_tokens": 3}}},
        {"timings": {"draft_n": 5, "draft_n_accepted": 3}},
    ],
)
def test_accepted_draft_tokens_are_read_if_reported(response: dict[str, Any]) -> None:
    first, second = parse_response({**response, "choices": [{"token_ids": [1]}, {"token_ids": [2]}]}, 2, 3)
    assert (first.num_accepted, second.num_accepted) == (3, None)


def test_log_probabilities_are_parsed_in_both_formats() -> None:
    old = {"tokens": ["token_id:4"], "top_logprobs": [{"token_id:4": -0.5, "token_id:9": -1.5}]}
    new = {"content": [{"id": 4, "top_logprobs": [{"id": 4, "logprob": -0.5}, {"id": 9, "logprob": -1.5}]}]}
    for logprobs in (old, new):
        (completion,) = parse_response({"choices": [{"logprobs": logprobs}]}, 1, 1)
        assert completion.logprobs == ({4: -0.5, 9: -1.5},)


def test_every_setting_is_sent_under_the_dialects_name() -> None:
    sampling = SamplingParams(top_k=8, repetition_penalty=1.1)
    assert VLLM.settings(sampling)["repetition_penalty"] == 1.1
    assert LLAMA_CPP_PYTHON.settings(sampling)["repeat_penalty"] == 1.1
    for dialect in DIALECTS.values():
        body = dialect.settings(SamplingParams())
        assert body["min_p"] == 0
        assert body["top_k"] in (0, -1)


def test_a_server_that_repeats_its_seeds_gets_a_new_one_per_request() -> None:
    seeds = {LLAMA_CPP_PYTHON.settings(SamplingParams())["seed"] for _ in range(8)}
    assert len(seeds) > 1
    assert "seed" not in VLLM.settings(SamplingParams())
    assert LLAMA_CPP_PYTHON.settings(SamplingParams(seed=3))["seed"] == 3


def test_unknown_servers_get_the_dialect_of_vllm() -> None:
    assert detect_dialect("unknown") is VLLM
    assert detect_dialect("me") is LLAMA_CPP_PYTHON


def test_lookup_candidates_follow_earlier_occurrences_of_the_last_token() -> None:
    assert lookup_candidates([1, 2, 3, 1, 4, 1]) == {2, 4}
    assert lookup_candidates([1, 2]) == set()
    assert lookup_candidates([]) == set()


def test_a_journal_is_resumed_even_if_its_last_line_is_truncated(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    journal = SampleJournal(file, {"of": 1})
    journal.append(SampleBatch(0, [(1, 2)], [(3, "x")]))
    journal.close()
    file.write_text(file.read_text() + '{"case": 1, "cand')
    again = SampleJournal(file, {"of": 1}, resume=True)
    again.append(SampleBatch(1, [(5,)], []))
    again.close()
    third = SampleJournal(file, {"of": 1}, resume=True)
    assert third.recorded_batches() == [SampleBatch(0, [(1, 2)], [(3, "x")]), SampleBatch(1, [(5,)], [])]
    third.close()
    with pytest.raises(ConfigurationError, match="differ: of"):
        SampleJournal(file, {"of": 2}, resume=True)


def test_a_journal_with_older_keys_is_resumed(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text(
        '{"question": {"model": "m", "tokens": 3}}\n{"case": 0, "tested": [[1, 2]], "plain": [[3, "x"]]}\n'
    )
    journal = SampleJournal(file, {"model": "m", "max_tokens": 3}, resume=True)
    journal.close()
    assert journal.recorded_batches() == [SampleBatch(0, [(1, 2)], [(3, "x")])]
    with pytest.raises(ConfigurationError, match="differ: max_tokens"):
        SampleJournal(file, {"model": "m", "max_tokens": 4}, resume=True)
