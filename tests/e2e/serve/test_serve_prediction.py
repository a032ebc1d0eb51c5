"""Predicted outputs through the `openai` client: identical output, drafts accepted, counts in `usage`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from e2e.serve.completions import client_of, counts
from forerun.servers.processes import Server

pytestmark = pytest.mark.e2e

EVERY_DRAFT_TOKEN = {"forerun_adaptive": 0, "forerun_max_draft": 8}
"""Verify every draft token, so that the numbers do not depend on the machine's speed."""

QUESTION = "Write the names of the seven days of the week, one per line."


def ask(server: Server, prediction: Any = None, **settings: Any) -> Any:
    given = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
    return client_of(server).chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=48,
        extra_body={"vllm_xargs": EVERY_DRAFT_TOKEN},
        **{"temperature": 0, **settings, **given},
    )


def details_of(usage: Any) -> tuple[int, int]:
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


@pytest.fixture(scope="module")
def expected(servers: tuple[Server, Server]) -> str:
    return str(ask(servers[0]).choices[0].message.content)


def test_the_output_as_its_own_prediction_is_accepted(forerun: Server, expected: str) -> None:
    before = counts(forerun)
    answer = ask(forerun, expected)
    after = counts(forerun)
    assert answer.choices[0].message.content == expected
    accepted, rejected = details_of(answer.usage)
    assert answer.usage.completion_tokens >= 16
    assert accepted >= answer.usage.completion_tokens - 3
    assert rejected <= 3
    key = "forerun:accepted_tokens_total prediction"
    assert after[key] - before[key] >= accepted // 2


def test_counts_add_up_to_the_prediction(forerun: Server, expected: str) -> None:
    edited = expected.replace("Tuesday", "Doomsday", 1)
    assert edited != expected
    for prediction in (edited, expected[: len(expected) // 2], "something else entirely"):
        answer = ask(forerun, prediction)
        assert answer.choices[0].message.content == expected
        body = {"model": "m", "prompt": prediction, "add_special_tokens": False}
        tokens = httpx.post(f"{forerun.url}/tokenize", json=body).json()
        assert sum(details_of(answer.usage)) == tokens["count"]


def test_seeded_output_is_that_of_the_baseline(baseline: Server, forerun: Server) -> None:
    settings: dict[str, Any] = {"temperature": 0.7, "seed": 5}
    wanted = ask(baseline, **settings).choices[0].message.content
    for prediction in (wanted, "Monday, Tuesday and " * 20):
        assert ask(forerun, prediction, **settings).choices[0].message.content == wanted


def test_parts_streams_and_several_choices(forerun: Server, expected: str) -> None:
    parts = [{"type": "text", "text": expected[:20]}, {"type": "text", "text": expected[20:]}]
    answer = ask(forerun, parts)
    least = answer.usage.completion_tokens - 3
    assert details_of(answer.usage)[0] >= least
    stream = ask(forerun, expected, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected
    assert details_of(chunks[-1].usage)[0] >= least
    two = ask(forerun, expected, n=2, temperature=0.5, seed=1)
    assert len(two.choices) == 2
    assert sum(details_of(two.usage)) % 2 == 0


def test_completions_take_a_prediction_in_their_options(baseline: Server, forerun: Server) -> None:
    prompt = "One, two, three, four, five, six,"
    settings: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0}
    wanted = client_of(baseline).completions.create(**settings).choices[0].text
    options = {"vllm_xargs": {"forerun_prediction": wanted}}
    answer = client_of(forerun).completions.create(**settings, extra_body=options)
    assert answer.choices[0].text == wanted
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens >= 20
    stream = client_of(forerun).completions.create(
        **settings, extra_body=options, stream=True, stream_options={"include_usage": True}
    )
    last = list(stream)[-1]
    assert last.usage.completion_tokens_details.accepted_prediction_tokens >= 20


def test_a_long_prediction_of_other_text_is_harmless(forerun: Server, expected: str) -> None:
    long = "".join(f"{number} bottles of beer on the wall. " for number in range(3300))
    assert len(long) > 100_000
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: ask(forerun, text), (long, None, long, expected)))
    assert {answer.choices[0].message.content for answer in answers} == {expected}
    assert details_of(answers[0].usage)[0] < 30


@pytest.mark.parametrize("prediction", ["text", {"type": "other", "content": "x"}, {"type": "content"}, {}])
def test_an_invalid_prediction_returns_400(forerun: Server, prediction: Any) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match="prediction"):
        client_of(forerun).chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hello"}],
            extra_body={"prediction": prediction},
        )


def test_stock_vllm_ignores_predictions(baseline: Server, expected: str) -> None:
    answer = ask(baseline, expected)
    assert answer.choices[0].message.content == expected
    assert "accepted_prediction_tokens" not in json.dumps(answer.usage.model_dump(exclude_none=True))
