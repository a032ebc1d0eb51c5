"""Requests through the local engine: random ones, broken ones, cancelled ones, each as if it were alone."""

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
from local_models import VOCAB, answers, make_drafters, make_engine

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller, Step
from forerun.drafters.match_tree import SURVIVAL
from forerun.engines.local.engine import CHUNK, Engine
from forerun.engines.local.request import Request, Result
from forerun.errors import ForerunError, InvalidDistribution, InvalidRequest, InvalidSampling
from forerun.types import BoolArray, Draft, RequestView, SamplingParams, Verdict

GREEDY = SamplingParams(temperature=0.0)
ENDS = frozenset({0})
EVERYBODY = ("suffix", "ngram", "model")


def some_request(number: int, rng: random.Random) -> Request:
    """A request of random length; greedy or seeded, so that its words are its own."""
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
    """Every tensor that is alive, by size, and every slot and request that somebody holds."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    drafter: Any = engine.guesser.drafters["model"].drafter
    return [
        sum(each.numel() * each.element_size() for each in tensors),
        engine.target.cache.num_free,
        drafter.runner.cache.num_free,
        engine.num_unfinished,
        len(engine.guesser._parts),
        *(len(getattr(each.drafter, "_requests", ())) for each in engine.guesser.drafters.values()),
        len(drafter._texts),
    ]


def test_two_hundred_requests_come_and_go_and_each_says_its_own_words(tiny_llama: Any) -> None:
    rng = random.Random(11)
    requests = [some_request(number, rng) for number in range(200)]
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, *EVERYBODY, slots=16), slots=16)
    engine.ends = ENDS
    first = Request("first", (1, 2, 3), max_tokens=1)
    answers(engine, [first])
    before = memory_of(engine)

    waiting, results = list(requests), dict[str, Result]()
    on_their_way: list[str] = []
    while waiting or engine.num_unfinished:
        for _ in range(min(len(waiting), rng.choice([0, 0, 1, 3, 9]))):
            engine.add(waiting[0])
            on_their_way.append(waiting.pop(0).id)
        unfinished = [name for name in on_their_way if name not in results]
        if unfinished and rng.random() < 0.2:
            engine.cancel(rng.choice(unfinished))
        results |= {update.id: update.result for update in engine.step() if update.result is not None}
    results |= {update.id: update.result for update in engine.step() if update.result is not None}

    assert sorted(results) == sorted(request.id for request in requests)
    assert engine.guesser.errors.total() == 0
    answers(engine, [first])  # the last pass before and after is the same
    assert memory_of(engine) == before
    cancelled = [result for result in results.values() if result.finish_reason == "cancelled"]
    assert 15 < len(cancelled) < 100
    assert all(result.error is None for result in results.values())

    plain = make_engine(tiny_llama, {}, slots=1)
    plain.ends = ENDS
    for request in requests:
        (alone,) = answers(plain, [replace(request, drafters=None)])
        result = results[request.id]
        if result.finish_reason == "cancelled":
            assert result.token_ids == alone.token_ids[: len(result.token_ids)]
        else:
            assert (result.token_ids, result.finish_reason) == (alone.token_ids, alone.finish_reason)
    assert sum(result.stats.num_accepted for result in results.values()) > 200, "hardly anything was guessed"


def test_a_prompt_longer_than_a_pass_is_read_in_pieces_beside_others(tiny_llama: Any) -> None:
    tiny_llama.config.max_position_embeddings = 1024
    long = tuple(n * 7 % VOCAB for n in range(2 * CHUNK + 30))
    requests = [Request("short", (1, 2, 3), max_tokens=20), Request("long", long, max_tokens=5)]
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=2, length=1024)
    together = answers(engine, requests)
    alone = [answers(make_engine(tiny_llama, {}, slots=1, length=1024), [each])[0] for each in requests]
    tiny_llama.config.max_position_embeddings = 256
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_an_answer_ends_where_its_room_does(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=1, length=24)
    (result,) = answers(engine, [Request("r", (1, 2, 3, 1, 2, 3, 1, 2), max_tokens=500)])
    assert (len(result.token_ids), result.finish_reason) == (16, "length")


def test_what_a_step_says_adds_up(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=2)
    engine.add(Request("r", (1, 2, 3), max_tokens=30))
    said: list[int] = []
    rounds = 0
    for update in engine.stream():
        said += update.token_ids
        rounds += 1
        assert update.verdict is not None
        assert update.verdict.tokens(update.draft)[: len(update.token_ids)] == list(update.token_ids)
        result = update.result
    assert result is not None
    assert list(result.token_ids) == said
    stats = result.stats
    assert (stats.num_tokens, stats.num_passes) == (30, rounds)
    assert stats.num_accepted == stats.by_drafter["suffix"].num_accepted > 0
    assert stats.num_guesses == stats.by_drafter["suffix"].num_guesses
    assert stats.tokens_per_pass > 1
    assert 0 < stats.by_drafter["suffix"].acceptance == stats.acceptance < 1


def add(engine: Engine, prompt: tuple[int, ...] = (1,), temperature: float = 0.0, **wrong: Any) -> None:
    """Ask for something strange."""
    sampling = SamplingParams(temperature=temperature, logit_bias=wrong.pop("logit_bias", {}))
    engine.add(Request("bad", prompt, sampling=sampling, **wrong))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": ()}, "the prompt is empty"),
        ({"prompt": (1,) * 200}, "the prompt has 200 tokens; .* must fit in 128: .*max_length"),
        ({"prompt": (1, 99)}, "token 99; the vocabulary has 16"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_draft": -1}, "max_draft is -1"),
        ({"stop": (1.5,)}, "stop holds 1.5, a float"),
        ({"stop": ("",)}, "stop holds ''"),
        ({"stop": ("END",)}, "a stop text needs a tokenizer"),
        ({"drafters": ("nobody",)}, "no drafter here is called 'nobody'; there is suffix"),
        ({"lenience": 0.0}, "lenience is 0.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"logit_bias": {99: 1.0}}, "logit_bias names token 99"),
    ],
)
def test_bad_input_is_an_error_of_that_request_alone(
    tiny_llama: Any, wrong: dict[str, Any], message: str
) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"))
    good = Request("good", (1, 2, 3), max_tokens=12)
    engine.add(good)
    engine.step()
    with pytest.raises((InvalidRequest, InvalidSampling), match=message):
        add(engine, **wrong)
    results = [update.result for update in engine.stream() if update.result is not None]
    (alone,) = answers(make_engine(tiny_llama, {}), [good])
    assert [result.token_ids for result in results] == [alone.token_ids]


def test_an_id_is_used_once_at_a_time(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, {})
    request = Request("twice", (1,), max_tokens=2)
    engine.add(request)
    with pytest.raises(InvalidRequest, match="'twice' is on its way"):
        engine.add(request)
    list(engine.stream())
    engine.add(request)
    engine.cancel("nobody")
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
    """Token 13 is poison: whoever reads it gets no numbers."""
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"), slots=2)
    real = engine.target.forward

    def read(texts: Sequence[Any]) -> torch.Tensor:
        logits = real(texts).clone()
        first = 0
        for rows in texts:
            tokens = list(rows.tokens)[len(rows.tokens) - rows.num_logits :]
            for place, token in enumerate(tokens):
                if token == 13:
                    logits[first + place] = broken
            first += rows.num_logits
        return logits

    monkeypatch.setattr(engine.target, "forward", read)
    allowed = SamplingParams(temperature=0.0, logit_bias={13: -100.0})
    bad, good = answers(
        engine,
        [
            Request("bad", (1, 2, 13), max_tokens=4, sampling=sampling),
            Request("good", (1, 13, 2, 1, 13, 2, 1), max_tokens=12, sampling=allowed),
        ],
    )
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, InvalidDistribution)
    assert "logits are NaN or infinite" in str(bad.error)
    monkeypatch.undo()
    (alone,) = answers(
        make_engine(tiny_llama, {}),
        [Request("good", (1, 13, 2, 1, 13, 2, 1), max_tokens=12, sampling=allowed)],
    )
    assert good.token_ids == alone.token_ids


class Faulty:
    """A drafter that breaks its contract in a way of one's choice."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self.act(view) for view in views]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        raise RuntimeError("it does not want to learn")

    def forget(self, id: str) -> None:
        raise RuntimeError("it does not forget")


def raising(view: RequestView) -> Draft:
    raise RuntimeError("no idea")


def nan_q(view: RequestView) -> Draft:
    from forerun.types import Proposal

    q = torch.full((VOCAB,), math.nan)
    q[5] = 0.5
    return Draft.chain([5], q=[Proposal(q)], source="faulty")


def sure_of_nothing(view: RequestView) -> Draft:
    return Draft.chain([5, 6], source="faulty", evidence=np.full((2, 1), math.nan, dtype=np.float32))


def short_of_evidence(view: RequestView) -> Draft:
    return Draft.chain([5, 6], source="faulty", evidence=np.ones((1, 1), dtype=np.float32))


@pytest.mark.parametrize(
    "act",
    [raising, nan_q, sure_of_nothing, short_of_evidence, lambda _: Draft.chain([99]), lambda _: None],
)
def test_a_faulty_drafter_costs_guesses_and_never_words(
    tiny_llama: Any, act: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=5), SamplingParams(temperature=1.0)):
        engine = make_engine(tiny_llama, {"faulty": Faulty(act)})
        (result,) = answers(engine, [Request("r", (1, 2, 3), max_tokens=10, sampling=sampling)])
        (plain,) = answers(
            make_engine(tiny_llama, {}), [Request("r", (1, 2, 3), max_tokens=10, sampling=sampling)]
        )
        assert len(result.token_ids) == 10
        assert result.error is None
        if sampling.greedy or sampling.seed is not None:
            assert result.token_ids == plain.token_ids
        assert engine.guesser.errors["faulty"] > 0
    assert issubclass(InvalidDistribution, ForerunError)


def test_joined_guesses_are_judged_one_by_one(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engines.local import engine as room

    seen: set[tuple[bool, bool]] = set()
    real = vars(room)["judge"]

    def judge(rounds: Sequence[Any], *rest: Any) -> Any:
        seen.update((bool(each.draft.sampled.any()), each.jointly) for each in rounds)
        return real(rounds, *rest)

    monkeypatch.setattr(room, "verify_requests", judge)
    sampled = SamplingParams(temperature=0.5)
    for names, expected in ((("model",), (True, True)), (("model", "suffix"), (True, False))):
        seen.clear()
        engine = make_engine(tiny_llama, make_drafters(tiny_llama, *names))
        answers(engine, [Request("r", (1, 2, 1, 2, 1, 2, 1), max_tokens=12, sampling=sampled)])
        assert expected in seen
        assert (True, not expected[1]) not in seen


class Stumbling:
    """A tokenizer that falls over token 13."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        if 13 in tokens:
            raise KeyError(13)
        return "x" * len(tokens)


def test_a_tokenizer_that_stumbles_fails_one_request(tiny_llama: Any) -> None:
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix"))
    engine.tokenizer = Stumbling()
    forced = SamplingParams(temperature=0.0, allowed_token_ids=(13,))
    never = SamplingParams(temperature=0.0, logit_bias={13: -100.0})
    bad, good = answers(
        engine,
        [
            Request("bad", (1, 2), max_tokens=4, sampling=forced),
            Request("good", (1, 2, 3), max_tokens=9, sampling=never),
        ],
    )
    assert bad.finish_reason == "error"
    assert "cannot be spelled" in str(bad.error)
    assert good.text == "x" * 9
    (alone,) = answers(
        make_engine(tiny_llama, {}), [Request("good", (1, 2, 3), max_tokens=9, sampling=never)]
    )
    assert good.token_ids == alone.token_ids


def test_a_step_that_breaks_off_can_be_tried_again(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engines.local import engine as room

    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix", "model"), slots=2)
    requests = [Request(str(i), (1, 2, i), max_tokens=20) for i in range(2)]
    for request in requests:
        engine.add(request)
    engine.step()
    real = vars(room)["judge"]

    def fail(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(room, "verify_requests", fail)
    with pytest.raises(MemoryError):
        engine.step()
    monkeypatch.setattr(room, "verify_requests", real)
    results = {update.id: update.result for update in engine.stream() if update.result is not None}
    alone = answers(make_engine(tiny_llama, {}, slots=1), requests)
    assert [results[request.id].token_ids for request in requests] == [each.token_ids for each in alone]


def test_updates_carry_the_survival_that_the_controller_decided_with(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[list[float]] = []
    choose = Controller.choose

    def recording(self: Controller, step: Step, guesses: Candidates) -> BoolArray:
        survivals = self.estimate_survival(step, guesses)
        kept = choose(self, step, guesses)
        used.append(survivals[kept].tolist())
        return kept

    monkeypatch.setattr(Controller, "choose", recording)
    engine = make_engine(tiny_llama, make_drafters(tiny_llama, "suffix", "ngram"))
    for number in range(3):
        prompt = tuple(number + token for token in (1, 2, 3, 4) * 3)
        engine.add(Request(f"{number}", prompt, max_tokens=30))
    shown, stated = list[float](), list[float]()
    while engine.num_unfinished:
        used.clear()
        updates = engine.step()
        assert [len(update.survival) for update in updates] == [len(update.draft) for update in updates]
        decided = [chance for update in updates for chance in update.survival]
        assert decided == (used[0] if used else [])
        shown += decided
        for update in updates:
            if update.draft.evidence is not None:
                stated += update.draft.evidence[:, SURVIVAL].tolist()
    assert len(shown) == len(stated) > 20
    assert np.abs(np.array(shown) - stated).max() > 0.1, "calibration moves what drafters state"
