"""The output of `forerun serve` is that of stock vLLM: greedy, seeded, streamed, and in audits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from e2e.engines import run_audit
from e2e.serve.completions import EVERY_DRAFT_TOKEN, NUM_TOKENS, client_of, complete, prompts
from forerun.servers.processes import Server

pytestmark = pytest.mark.e2e


def test_vllm_loads_the_converted_model_and_it_answers_a_question(baseline: Server) -> None:
    """In float32, because the first token is a near-tie in bfloat16."""
    assert "Paris" in complete(baseline, "What is the capital of France?")["text"]


def test_greedy_output_is_that_of_stock_vllm_alone_and_in_a_batch(baseline: Server, forerun: Server) -> None:
    texts = prompts()
    alone = [complete(forerun, text, extra_body={"cache_salt": f"s{at}"}) for at, text in enumerate(texts)]
    with ThreadPoolExecutor(16) as pool:
        expected = [one["tokens"] for one in pool.map(lambda text: complete(baseline, text), texts)]
        together = list(pool.map(lambda text: complete(forerun, text), texts))
    assert [one["tokens"] for one in alone] == expected
    assert [one["tokens"] for one in together] == expected
    assert sum(one["accepted"] for one in alone) > 0.1 * sum(map(len, expected))


def test_seeded_output_is_that_of_stock_vllm(baseline: Server, forerun: Server) -> None:
    texts = prompts()

    def tokens_of(server: Server, seed: int) -> list[int]:
        settings = {"temperature": 0.8, "top_p": 0.95, "seed": seed}
        num_tokens = NUM_TOKENS // 2  # top-p sorts the vocabulary, which takes as long as a step
        tokens: list[int] = complete(server, texts[seed], max_tokens=num_tokens, **settings)["tokens"]
        return tokens

    with ThreadPoolExecutor(4) as pool:
        expected, found = (
            list(pool.map(partial(tokens_of, each), range(len(texts)))) for each in (baseline, forerun)
        )
    assert found == expected


def test_min_p_and_biases_give_the_output_of_non_speculative_decoding(
    baseline: Server, forerun: Server
) -> None:
    text = "Repeat twice: the library opens at one o'clock."
    for settings in (
        {"temperature": 0.9, "seed": 1, "extra_body": {"min_p": 0.1}},
        {"temperature": 0.9, "seed": 2, "logit_bias": {"260": -100, "28": 5}},
        {"logit_bias": {"260": -100}},
    ):
        assert complete(forerun, text, **settings)["tokens"] == complete(baseline, text, **settings)["tokens"]


def test_streams_emit_each_step_as_a_chunk_and_add_up_to_the_completion(forerun: Server) -> None:
    several = 0
    for text, settings in (
        ("Repeat three times: the train arrives at noon and leaves at one.", {"max_tokens": 64}),
        ("Repeat five times, nothing else: 🚂 naïve café, 東京タワー 🎉", {"max_tokens": 96}),
        ("Repeat three times: alpha beta gamma delta epsilon.", {"stop": ["delta eps"], "max_tokens": 64}),
        ("Repeat three times: one two three four five six.", {"stop": ["six.\n\nOne two"], "max_tokens": 64}),
    ):
        whole = complete(forerun, text, **settings)
        stream = client_of(forerun).chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": text}],
            temperature=0,
            stream=True,
            extra_body={"return_token_ids": True, "vllm_xargs": EVERY_DRAFT_TOKEN},
            **settings,
        )
        streamed, tokens = "", list[int]()
        for chunk in stream:
            for choice in chunk.choices:
                new = choice.model_extra.get("token_ids") or []
                several += len(new) > 1
                tokens += new
                streamed += choice.delta.content or ""
        assert streamed == whole["text"]
        assert tokens == whole["tokens"]
        assert "\ufffd" not in streamed.rstrip("\ufffd")
    assert several > 3, "chunks with several tokens"


def test_audits_find_no_difference(baseline: Server, forerun: Server, smollm2: Path) -> None:
    """The audit commands, with few samples; docs/auditing.md reports longer runs."""
    candidate = ("--candidate", forerun.url, "--reference", smollm2)
    both = ("--baseline", baseline.url, *candidate, "--max-tokens", "12")
    code, report = run_audit("greedy", *both, "--precision", "float32")
    assert code == 0
    assert report["findings"] == {"same": report["num_samples"]}
    code, report = run_audit("seeded", *both, "--num-seeds", "1")
    assert code == 0
    settings = ("--settings", "top-k 8", "--settings", "all at once, top-k 8", "--settings", "top-p 0.9")
    size = ("--num-samples", "64", "--max-samples", "16")
    code, report = run_audit("sampled", *candidate, *settings, *size)
    assert code == 0
    assert report["e_value"] < 20
    assert any("draft tokens were accepted" in note for note in report["notes"])
