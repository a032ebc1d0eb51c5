"""Draft requests of vLLM's requests: budgets, and what is remembered from step to step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from forerun.engines.vllm.draft_requests import DraftRequestBuilder


def builder(*, max_scheduled: int = 1000, use_v2: bool = False) -> DraftRequestBuilder:
    scheduler = SimpleNamespace(
        max_model_len=100, max_num_scheduled_tokens=max_scheduled, use_v2_model_runner=use_v2
    )
    return DraftRequestBuilder(scheduler, ["suffix"], max_draft_tokens=8)


def running(
    name: str, *, num_output: int = 1, temperature: float = 0.0, seed: int | None = None, **settings: Any
) -> SimpleNamespace:
    """A request of vLLM with a prompt of ten tokens and twenty output tokens at most."""
    extra = {key: value for key, value in settings.items() if key.startswith("forerun")}
    params = SimpleNamespace(
        temperature=temperature,
        seed=seed,
        extra_args=extra or None,
        thinking_token_budget=settings.get("thinking_token_budget"),
    )
    return SimpleNamespace(
        request_id=name,
        all_token_ids=list(range(10 + num_output)),
        num_prompt_tokens=10,
        cache_salt=None,
        sampling_params=params,
        num_output_placeholders=0,
        num_tokens=10 + num_output,
        max_tokens=20,
        num_output_tokens=num_output,
    )


def test_a_draft_request_is_used_again_until_its_budget_changes() -> None:
    build, request = builder(), running("a")
    first = build.build([request])[0]
    assert (first.max_tokens, first.greedy, first.view.tokens) == (8, True, request.all_token_ids)
    assert build.build([request])[0] is first
    request.num_output_tokens = 15  # five are left, of which the step emits one without drafts
    assert build.build([request])[0].max_tokens == 4
    request.num_output_tokens = 1
    assert build.build([request])[0].max_tokens == 8


def test_a_prompt_that_grows_is_seen() -> None:
    build, request = builder(), running("a")
    build.build([request])
    request.num_prompt_tokens = 11
    assert build.build([request])[0].view.num_prompt == 11


def test_a_forgotten_request_is_read_anew() -> None:
    build = builder()
    assert build.build([running("a")])[0].greedy
    build.forget("a")
    assert build.drafters_of("a") is None
    assert not build.build([running("a", temperature=1.0)])[0].greedy
    seeds = [None, 7]
    sampled = build.build([running(f"sampled {seed}", temperature=1.0, seed=seed) for seed in seeds])
    assert [each.view.sampling.unseeded for each in sampled] == [True, False]


def test_the_limit_and_the_drafters_of_a_request_are_kept() -> None:
    build = builder()
    request = running("a", forerun_max_draft=2, forerun_drafter="suffix")
    assert [each.max_tokens for each in build.build([request])] == [2]
    assert build.drafters_of("a") == ("suffix",)


def test_requests_share_the_token_budget_of_a_step() -> None:
    build = builder(max_scheduled=8)
    assert [each.max_tokens for each in build.build([running("a"), running("b")])] == [3, 3]


def test_a_thinking_budget_ends_drafting_on_the_v1_runner_only() -> None:
    for use_v2, budget in ((False, 0), (True, 8)):
        requests = [running("a"), running("b", thinking_token_budget=5)]
        assert [each.max_tokens for each in builder(use_v2=use_v2).build(requests)] == [budget, budget]
