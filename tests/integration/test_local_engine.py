"""The local engine: random, invalid, failing and cancelled requests have the output of decoding alone."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step import Step
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.local import engine as local_engine
from forerun.engines.local.engine import MAX_PREFILL_ROWS, Engine
from forerun.engines.local.request import Request, Result
from forerun.engines.local.verification import verify_requests
from forerun.errors import ForerunError, InvalidDistribution, InvalidRequest, InvalidSampling
from forerun.types import BoolArray, Draft, RequestView, SamplingParams, Verdict
from integration.local_models import VOCAB, generate, make_drafters, make_engine

GREEDY = SamplingParams(temperature=0.0)
EOS = frozenset({0})
ALL_DRAFTERS = ("suffix", "ngram", "model")


def random_request(number: int, rng: random.Random) -> Request:
    """A request of random length; greedy or seeded, so that its output is deterministic."""
    kind = rng.random()
    sampling = SamplingParams(
        temperature=0.0 if kind < 0.4 else rng.choice([0.5, 1.0, 1.4]),
        seed=rng.randrange(2**40),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 5]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.7]),
    )
    return Request(
        id=f"request {number}",
        prompt=tuple(rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 7, 30, 70]))),
        max_tokens=rng.choice([1, 2, 10, 40, 200]),
        sampling=sampling,
        stop=rng.choice([(), (3,)]),
        ignore_end=rng.random() < 0.5,
        max_draft=rng.choice([None, None, 0, 3]),
        drafters=rng.choice([None, None, ("suffix",), ("model", "ngram")]),
    )


def memory_of(engine: Engine) -> list[int]:
    """The size of all live tensors, free slots, and requests with live state."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    suffix, ngram, model = (engine.speculator.drafters[name].drafter for name in ALL_DRAFTERS)
    assert isinstance(suffix, SuffixDrafter)
    assert isinstance(ngram, NgramDrafter)
    assert isinstance(model, ModelDrafter)
    return [
        sum(each.numel() * each.element_size() for each in tensors),
        engine.target.cache.num_free,
        model.runner.cache.num_free,
        engine.num_unfinished,
        len(engine.speculator.tracked),
        len(suffix._requests),
        len(ngram._requests),
        len(model._states),
    ]


def test_two_hundred_requests_in_changing_batches_have_the_output_of_decoding_alone(tiny_llama: Any) -> None:
    rng = random.Random(11)
    requests = [random_request(number, rng) for number in range(200)]
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, *ALL_DRAFTERS, slots=16), slots=16)
    engine.eos_token_ids = EOS
    first = Request("first", (1, 2, 3), max_tokens=1)
    generate(engine, [first])
    before = memory_of(engine)

    waiting, results = list(requests), dict[str, Result]()
    added: list[str] = []
    while waiting or engine.num_unfinished:
        for _ in range(min(len(waiting), rng.choice([0, 0, 1, 3, 9]))):
            engine.add(waiting[0])
            added.append(waiting.pop(0).id)
        unfinished = [name for name in added if name not in results]
        if unfinished and rng.random() < 0.2:
            engine.cancel(rng.choice(unfinished))
        results |= {update.id: update.result for update in engine.step() if update.result is not None}
    results |= {update.id: update.result for update in engine.step() if update.result is not None}

    assert sorted(results) == sorted(request.id for request in requests)
    assert engine.drafter_totals.errors.total() == 0
    generate(engine, [first])  # the last forward pass before and after has the same shape
    assert memory_of(engine) == before
    cancelled = [result for result in results.values() if result.finish_reason == "cancelled"]
    assert 15 < len(cancelled) < 100
    assert all(result.error is None for result in results.values())

    baseline = make_engine(tiny_llama, {}, slots=1)
    baseline.eos_token_ids = EOS
    for request in requests:
        result = results[request.id]
        if result.finish_reason != "cancelled":
            (alone,) = generate(baseline, [replace(request, drafters=None)])
            assert (result.token_ids, result.finish_reason) == (alone.token_ids, alone.finish_reason)
        elif result.token_ids:
            num_tokens = len(result.token_ids)
            (alone,) = generate(baseline, [replace(request, drafters=None, max_tokens=num_tokens)])
            assert result.token_ids == alone.token_ids
    assert sum(result.stats.num_accepted for result in results.values()) > 200, (
        "too few draft tokens were accepted"
    )


def test_a_long_prompt_is_prefilled_in_chunks_while_other_requests_decode(tiny_llama: Any) -> None:
    tiny_llama.config.max_position_embeddings = 1024
    long = tuple(n * 7 % VOCAB for n in range(2 * MAX_PREFILL_ROWS + 30))
    requests = [Request("short", (1, 2, 3), max_tokens=20), Request("long", long, max_tokens=5)]
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=2, length=1024)
    together = generate(engine, requests)
    alone = [generate(make_engine(tiny_llama, {}, slots=1, length=1024), [each])[0] for each in requests]
    tiny_llama.config.max_position_embeddings = 256
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_an_output_ends_at_max_length(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=1, length=24)
    (result,) = generate(engine, [Request("r", (1, 2, 3, 1, 2, 3, 1, 2), max_tokens=500)])
    assert (len(result.token_ids), result.finish_reason) == (16, "length")


def test_the_updates_of_all_steps_add_up_to_the_result(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=2)
    engine.add(Request("r", (1, 2, 3), max_tokens=30))
    tokens: list[int] = []
    num_steps = 0
    for update in engine.stream():
        tokens += update.token_ids
        num_steps += 1
        assert update.verdict is not None
        assert update.verdict.tokens(update.draft)[: len(update.token_ids)] == list(update.token_ids)
        result = update.result
    assert result is not None
    assert list(result.token_ids) == tokens
    stats = result.stats
    assert (stats.num_tokens, stats.num_steps) == (30, num_steps)
    assert stats.num_accepted == stats.by_drafter["suffix"].num_accepted > 0
    assert stats.num_draft_tokens == stats.by_drafter["suffix"].num_draft_tokens
    assert stats.tokens_per_step > 1
    assert 0 < stats.by_drafter["suffix"].acceptance_rate == stats.acceptance_rate < 1


def add(engine: Engine, prompt: tuple[int, ...] = (1,), temperature: float = 0.0, **wrong: Any) -> None:
    """Add an invalid request."""
    sampling = SamplingParams(temperature=temperature, logit_bias=wrong.pop("logit_bias", {}))
    engine.add(Request("bad", prompt, sampling=sampling, **wrong))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"prompt": (1,) * 200}, "200 tokens.*128.*max_length"),
        ({"prompt": (1, 99)}, "token 99.* 16"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_draft": -1}, "max_draft is -1"),
        ({"stop": (1.5,)}, "stop .*1.5.*float"),
        ({"stop": ("",)}, "stop .*''"),
        ({"stop": ("END",)}, "stop .*tokenizer"),
        ({"drafters": ("unknown",)}, "'unknown'.*suffix"),
        ({"lenience": 0.0}, "lenience is 0.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"logit_bias": {99: 1.0}}, "logit_bias .*99"),
    ],
)
def test_an_invalid_request_fails_alone(tiny_llama: Any, wrong: dict[str, Any], message: str) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"))
    good = Request("good", (1, 2, 3), max_tokens=12)
    engine.add(good)
    engine.step()
    with pytest.raises((InvalidRequest, InvalidSampling), match=message):
        add(engine, **wrong)
    results = [update.result for update in engine.stream() if update.result is not None]
    (alone,) = generate(make_engine(tiny_llama, {}), [good])
    assert [result.token_ids for result in results] == [alone.token_ids]


def test_unfinished_requests_have_different_ids(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, {})
    request = Request("twice", (1,), max_tokens=2)
    engine.add(request)
    with pytest.raises(InvalidRequest, match=r"'twice'.*id"):
        engine.add(request)
    list(engine.stream())
    engine.add(request)
    engine.cancel("unknown")
    assert len(list(engine.stream())) == 2


def test_waiting_and_running_requests_can_be_cancelled(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=1)
    for name in ("running", "waiting", "last"):
        engine.add(Request(name, (1, 2), max_tokens=8))
    engine.step()
    engine.cancel("running")
    engine.cancel("waiting")
    results = {update.id: update.result for update in engine.stream() if update.result is not None}
    assert {name: result.finish_reason for name, result in results.items()} == {
        "running": "cancelled",
        "waiting": "cancelled",
        "last": "length",
    }
    assert len(results["running"].token_ids) >= 1
    assert engine.target.cache.num_free == 1


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(seed=3), SamplingParams(), SamplingParams(top_p=0.8, top_k=5, min_p=0.01)],
)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_logits_fail_the_request_they_belong_to(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams, broken: float
) -> None:
    """The logits after token 13 are broken."""
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=2)
    real = engine.target.forward

    def forward(inputs: Sequence[Any]) -> torch.Tensor:
        logits = real(inputs).clone()
        first = 0
        for rows in inputs:
            tokens = list(rows.tokens)[len(rows.tokens) - rows.num_logits :]
            for position, token in enumerate(tokens):
                if token == 13:
                    logits[first + position] = broken
            first += rows.num_logits
        return logits

    monkeypatch.setattr(engine.target, "forward", forward)
    allowed = SamplingParams(temperature=0.0, logit_bias={13: -100.0})
    bad, good = generate(
        engine,
        [
            Request("bad", (1, 2, 13), max_tokens=4, sampling=sampling),
            Request("good", (1, 13, 2, 1, 13, 2, 1), max_tokens=12, sampling=allowed),
        ],
    )
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, InvalidDistribution)
    assert "logits" in str(bad.error)
    monkeypatch.undo()
    (alone,) = generate(
        make_engine(tiny_llama, {}),
        [Request("good", (1, 13, 2, 1, 13, 2, 1), max_tokens=12, sampling=allowed)],
    )
    assert good.token_ids == alone.token_ids


class Faulty:
    """A drafter that violates its contract in a given way."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self.act(view) for view in views]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        raise RuntimeError("learn failed")

    def forget(self, id: str) -> None:
        raise RuntimeError("forget failed")


def raising(view: RequestView) -> Draft:
    raise RuntimeError("propose failed")


def nan_q(view: RequestView) -> Draft:
    from forerun.types import Proposal

    q = torch.full((VOCAB,), math.nan)
    q[5] = 0.5
    return Draft.chain([5], q=[Proposal(q)], source="faulty")


def nan_survival(view: RequestView) -> Draft:
    return Draft.chain([5, 6], source="faulty", survival=np.full(2, math.nan, dtype=np.float32))


def missing_survival(view: RequestView) -> Draft:
    return Draft.chain([5, 6], source="faulty", survival=np.ones(1, dtype=np.float32))


@pytest.mark.parametrize(
    "act",
    [raising, nan_q, nan_survival, missing_survival, lambda _: Draft.chain([99]), lambda _: None],
)
def test_a_faulty_drafter_costs_draft_tokens_and_never_changes_the_output(
    tiny_llama: Any, act: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=5), SamplingParams(temperature=1.0)):
        engine = make_engine(tiny_llama, {"faulty": Faulty(act)})
        (result,) = generate(engine, [Request("r", (1, 2, 3), max_tokens=10, sampling=sampling)])
        (baseline,) = generate(
            make_engine(tiny_llama, {}), [Request("r", (1, 2, 3), max_tokens=10, sampling=sampling)]
        )
        assert len(result.token_ids) == 10
        assert result.error is None
        if sampling.greedy or sampling.seed is not None:
            assert result.token_ids == baseline.token_ids
        assert engine.drafter_totals.errors["faulty"] > 0
    assert issubclass(InvalidDistribution, ForerunError)


def test_merged_drafts_are_not_block_verified(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[bool, bool]] = set()
    real = verify_requests

    def verify(requests: Sequence[Any], *rest: Any) -> Any:
        seen.update((bool(each.draft.sampled.any()), each.can_block_verify) for each in requests)
        return real(requests, *rest)

    monkeypatch.setattr(local_engine, "verify_requests", verify)
    sampled = SamplingParams(temperature=0.5)
    for names, expected in ((("model",), (True, True)), (("suffix", "model"), (True, False))):
        seen.clear()
        engine = make_engine(tiny_llama, make_drafters(tiny_llama, *names))
        generate(engine, [Request("r", (1, 2, 1, 2, 1, 2, 1), max_tokens=12, sampling=sampled)])
        assert expected in seen
        assert (True, not expected[1]) not in seen


class FailingTokenizer:
    """A tokenizer that cannot decode token 13."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        if 13 in tokens:
            raise KeyError(13)
        return "x" * len(tokens)


def test_an_error_of_the_tokenizer_fails_one_request(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"))
    engine.tokenizer = FailingTokenizer()
    forced = SamplingParams(temperature=0.0, allowed_token_ids=(13,))
    never = SamplingParams(temperature=0.0, logit_bias={13: -100.0})
    bad, good = generate(
        engine,
        [
            Request("bad", (1, 2), max_tokens=4, sampling=forced),
            Request("good", (1, 2, 3), max_tokens=9, sampling=never),
        ],
    )
    assert bad.finish_reason == "error"
    assert "13" in str(bad.error)
    assert good.text == "x" * 9
    (alone,) = generate(
        make_engine(tiny_llama, {}), [Request("good", (1, 2, 3), max_tokens=9, sampling=never)]
    )
    assert good.token_ids == alone.token_ids


def test_a_step_that_raises_can_be_retried(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix", "model"), slots=2)
    requests = [Request(str(i), (1, 2, i), max_tokens=20) for i in range(2)]
    for request in requests:
        engine.add(request)
    engine.step()
    real = verify_requests

    def fail(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(local_engine, "verify_requests", fail)
    with pytest.raises(MemoryError):
        engine.step()
    monkeypatch.setattr(local_engine, "verify_requests", real)
    results = {update.id: update.result for update in engine.stream() if update.result is not None}
    alone = generate(make_engine(tiny_llama, {}, slots=1), requests)
    assert [results[request.id].token_ids for request in requests] == [each.token_ids for each in alone]


def test_updates_have_the_survival_with_which_the_controller_chose(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[list[float]] = []
    choose = Controller.choose

    def recording(self: Controller, step: Step, candidates: Candidates) -> BoolArray:
        survivals = self.estimate_survival(step, candidates)
        chosen = choose(self, step, candidates)
        used.append(survivals[chosen].tolist())
        return chosen

    monkeypatch.setattr(Controller, "choose", recording)
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix", "ngram"))
    for number in range(3):
        prompt = tuple(number + token for token in (1, 2, 3, 4) * 3)
        engine.add(Request(f"{number}", prompt, max_tokens=30))
    reported, stated = list[float](), list[float]()
    while engine.num_unfinished:
        used.clear()
        updates = engine.step()
        assert [len(update.survival) for update in updates] == [len(update.draft) for update in updates]
        decided = [survival for update in updates for survival in update.survival]
        assert decided == (used[0] if used else [])
        reported += decided
        for update in updates:
            if update.draft.survival is not None:
                stated += update.draft.survival.tolist()
    assert len(reported) == len(stated) > 20
    assert np.abs(np.array(reported) - stated).max() > 0.1, "calibration changes the drafters' estimates"
