"""Servers asked for what a prediction needs, and for what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from forerun.bench.contestants import STEP_BY_STEP, Model, flags_of, quiet
from forerun.bench.costs import pass_costs
from forerun.bench.record import Costs
from forerun.bench.replay import SHORTEST
from forerun.bench.suites import Question
from forerun.bench.summary import Ratio, ratio_of
from forerun.config import SpeculationConfig
from forerun.errors import ServerFailed
from forerun.servers.endpoint import Endpoint
from forerun.servers.processes import forerun_command, started
from forerun.servers.streaming import Streamed
from forerun.tune.predict import Choice, Prediction, Spoken, Watch
from forerun.types import SamplingParams

OFF: Final = {"vllm_xargs": {"forerun_max_draft": 0}, "cache_salt": "plain"}
"""Plain decoding; under another salt, since nobody is to guess from the very answer that is asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, and how."""

    questions: Sequence[Question]
    num_tokens: int
    temperature: float = 0.0

    def places(self, num: int) -> list[int]:
        """Where so many of the questions are, spread over all."""
        return [int(at) for at in np.unique(np.linspace(0, len(self.questions) - 1, num).round())]

    def some(self, num: int) -> Asked:
        """So many of the questions at most, spread over all."""
        return replace(self, questions=[self.questions[place] for place in self.places(num)])

    def sampling(self, number: int) -> SamplingParams:
        """The settings of one of them."""
        return SamplingParams(temperature=self.temperature, seed=number if self.temperature else None)


@contextmanager
def serving(model: Model, config: SpeculationConfig) -> Iterator[Endpoint]:
    """`forerun serve` with a configuration, warm."""
    with TemporaryDirectory() as folder:
        speculation = Path(folder) / "speculation.json"
        speculation.write_text(config.model_dump_json(exclude_defaults=True), encoding="utf-8")
        flags = [*flags_of(model), *STEP_BY_STEP]
        command = forerun_command(model.path, "--speculation", str(speculation), *flags)
        with started(command, Path(folder) / "server.log", environment=quiet()) as server:
            endpoint = Endpoint(server.url, timeout=600.0)
            try:
                yield endpoint
            finally:
                endpoint.close()


def answer_plainly(server: Endpoint, asked: Asked, watch: Watch) -> list[Streamed]:
    """Everything, without guesses."""
    answers = []
    for number, question in enumerate(asked.questions):
        watch(f"plain answers, {number + 1} of {len(asked.questions)}")
        answers.append(server.chat(question.text, asked.sampling(number), asked.num_tokens, OFF))
    return answers


def spoken(answers: Sequence[Streamed]) -> list[Spoken]:
    """Plain answers, for replays; those that came at once are too short to be replayed."""
    return [
        Spoken(np.array(each.prompt_ids), np.array(each.token_ids), 1 / each.speed if each.speed else 0.0)
        for each in answers
    ]


def costs_of(server: Endpoint, *, drawn: bool) -> Costs:
    """What passes cost by their rows, as the server measured when it started and has mended since."""
    costs = pass_costs(server).get(drawn)
    if not costs:
        raise ServerFailed("the server does not say what passes cost: is it forerun's?")
    return costs


@dataclass(frozen=True, slots=True)
class Measured:
    """A choice beside plain decoding, in turn on one server."""

    gain: Ratio
    speed: float
    plain_speed: float
    tokens_per_step: float
    guesses_per_step: float
    same: int
    num: int


def measure(
    server: Endpoint, asked: Asked, wishes: Mapping[str, Any], watch: Watch, salt: str = "guessed"
) -> Measured:
    """Ask everything both ways, in turn; earlier answers are those under the same salt."""
    pairs = []
    guessed = {"cache_salt": salt} | ({"vllm_xargs": dict(wishes)} if wishes else {})
    for number, question in enumerate(asked.questions):
        watch(f"a real run, {number + 1} of {len(asked.questions)}")
        said = [
            server.chat(question.text, asked.sampling(number), asked.num_tokens, way)
            for way in ((OFF, guessed) if number % 2 else (guessed, OFF))
        ]
        pairs.append(said if number % 2 else said[::-1])
    timed = [
        (plain, ours, plain.speed, ours.speed)
        for plain, ours in pairs
        if min(plain.num_tokens, ours.num_tokens) >= SHORTEST and plain.speed and ours.speed
    ]
    if not timed:
        raise ServerFailed("every answer is too short to be timed: give prompts with longer answers")
    mine = [ours for _, ours, *_ in timed]
    tokens = sum(each.num_tokens - each.counts[0] for each in mine)
    steps = sum(each.num_steps or 0 for each in mine) or tokens
    return Measured(
        ratio_of([np.array([speed / before for *_, before, speed in timed])]),
        float(np.median([speed for *_, speed in timed])),
        float(np.median([before for *_, before, _ in timed])),
        tokens / steps,
        sum(sum(each.guessed or ()) for each in mine) / steps,
        sum(plain.token_ids == ours.token_ids for plain, ours in pairs),
        len(pairs),
    )


def predicted_by(choice: Choice, found: Measured) -> Prediction:
    """A choice that no replay can judge, by a run of some of the prompts."""
    return Prediction(choice, found.gain.value, found.tokens_per_step, found.guesses_per_step, measured=True)
