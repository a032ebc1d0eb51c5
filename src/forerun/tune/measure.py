"""Servers asked for what a prediction needs, and for what it is worth."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any, Final
from zlib import crc32

import numpy as np

from forerun.bench.record import Costs
from forerun.bench.replay import SHORTEST
from forerun.bench.server_costs import pass_costs
from forerun.bench.suites import Question
from forerun.bench.summary import RatioEstimate, ratio_of_sums
from forerun.bench.systems import WITHOUT_CHUNKED_PREFILL, ServedModel, flags_of, quiet
from forerun.bench.transcripts import Transcript
from forerun.config import SpeculationConfig
from forerun.errors import ServerFailed, UnreadablePrompts
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint
from forerun.servers.processes import forerun_command, started
from forerun.servers.streaming import StreamedAnswer
from forerun.tune.predict import BaselineRun, Choice, Prediction, Watch
from forerun.types import SamplingParams

WARM: Final = 4
"""Prompts that are asked before one counts, where what pays has to be learnt."""

TOGETHER: Final = 8
"""Plain answers that are asked for at once: only their words count."""

ALONE: Final = 4
"""Plain answers that tell what a token takes, and right before the server is asked what passes cost."""


@dataclass(frozen=True, slots=True)
class DecodingMode:
    """How requests wish to be decoded. Where answers are shared, they are among those of one salt; a way that
    is `for_itself` shares nothing, wherever it is tried.
    """

    wishes: Mapping[str, Any]
    salt: str
    for_itself: bool = False

    def asks(self, number: int) -> dict[str, Any]:
        """What the request of this number says beside its prompt."""
        salt = f"{self.salt} {number}" if self.for_itself else self.salt
        return {"cache_salt": salt} | ({"vllm_xargs": dict(self.wishes)} if self.wishes else {})


OFF: Final = DecodingMode({"forerun_max_draft": 0, "forerun_adaptive": 0}, "plain")
"""Plain decoding, of which nothing is learnt; under another salt, since nobody is to guess from the very
answer that is asked for.
"""


def way_of(choice: Choice, **wishes: int) -> DecodingMode:
    """A choice, on a server that has the drafter, whether or not it shares answers; the drafter of a draft
    model's server is its own.
    """
    who = {} if choice.config.draft_model else {"forerun_drafter": choice.config.names[0]}
    return DecodingMode(who | wishes, f"{choice.name} {wishes}", for_itself=not choice.config.share_outputs)


@dataclass(frozen=True, slots=True)
class TuningPrompts:
    """What is asked, and how."""

    questions: Sequence[Question]
    num_tokens: int
    temperature: float = 0.0

    def places(self, num: int) -> list[int]:
        """Where so many of the questions are, spread over all."""
        return [int(at) for at in np.unique(np.linspace(0, len(self.questions) - 1, num).round())]

    def some(self, num: int) -> TuningPrompts:
        """So many of the questions at most, spread over all."""
        return self.at(self.places(num))

    def at(self, places: Sequence[int]) -> TuningPrompts:
        """The questions at these places."""
        return replace(self, questions=[self.questions[place] for place in places])

    def sampling(self, question: Question) -> SamplingParams:
        """The settings of one of them: its seed is its own, whichever others are asked."""
        seed = crc32(question.text.encode()) if self.temperature else None
        return SamplingParams(temperature=self.temperature, seed=seed)


@contextmanager
def serving(model: ServedModel, config: SpeculationConfig) -> Iterator[Endpoint]:
    """`forerun serve` with a configuration, warm. The log of a server that fails is kept."""
    with TemporaryDirectory() as folder, _log() as log:
        speculation = Path(folder) / "speculation.json"
        speculation.write_text(config.model_dump_json(exclude_defaults=True), encoding="utf-8")
        flags = [*flags_of(model), *WITHOUT_CHUNKED_PREFILL]
        command = forerun_command(model.path, "--speculation", str(speculation), *flags)
        with started(command, log, environment=quiet(), startup_timeout=model.startup_timeout) as server:
            endpoint = Endpoint(server.url, timeout=600.0)
            try:
                yield endpoint
            finally:
                endpoint.close()


@contextmanager
def _log() -> Iterator[Path]:
    """A file for a server's log, removed unless the server fails."""
    number, name = mkstemp(prefix="forerun-tune-", suffix=".log")
    os.close(number)
    log = Path(name)
    try:
        yield log
    except ServerFailed:
        raise
    except BaseException:
        log.unlink()
        raise
    log.unlink()


def run_baseline(server: Endpoint, asked: TuningPrompts, at_once: int, watch: Watch) -> list[StreamedAnswer]:
    """Everything, without guesses, so many at a time."""

    def ask(question: Question) -> StreamedAnswer:
        return server.chat(question.text, asked.sampling(question), asked.num_tokens, OFF.asks(0))

    answers = []
    for answer in map_concurrent(ask, asked.questions, at_once):
        answers.append(answer)
        watch(f"plain answers, {at_once} at a time: {len(answers)} of {len(asked.questions)}")
    return answers


def measure_baseline(server: Endpoint, asked: TuningPrompts, watch: Watch) -> tuple[BaselineRun, float]:
    """What plain decoding tells of these, and its tokens per second when it is alone."""
    answers = run_baseline(server, asked, TOGETHER, watch)
    alone = run_baseline(server, asked.some(ALONE), 1, watch)
    costs = costs_of(server, drawn=bool(asked.temperature))
    recorded = [
        Transcript(question.category, np.array(each.prompt_ids), np.array(each.token_ids))
        for question, each in zip(asked.questions, answers, strict=True)
    ]
    speeds = [each.speed for each in alone if each.speed]
    if not speeds:
        raise UnreadablePrompts("every answer is too short to be timed: give prompts with longer ones")
    speed = float(np.median(speeds))
    return BaselineRun(recorded, costs, 1 / speed, asked.num_tokens), speed


def costs_of(server: Endpoint, *, drawn: bool) -> Costs:
    """What passes cost by their rows, as the server measured when it started and has mended since."""
    costs = pass_costs(server).get(drawn)
    if not costs:
        raise ServerFailed("the server does not say what passes cost: is it forerun's?")
    return costs


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """One question both ways."""

    plain: StreamedAnswer
    ours: StreamedAnswer

    @property
    def is_timed(self) -> bool:
        """Whether both say enough to have a speed."""
        both = (self.plain, self.ours)
        return all(each.speed and each.num_tokens >= SHORTEST for each in both)

    @property
    def seconds(self) -> tuple[float, float]:
        """What as many tokens as plain decoding said later than its first take, either way."""
        tokens = self.plain.num_later
        return tokens / (self.plain.speed or 1.0), tokens / (self.ours.speed or 1.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """A way beside plain decoding, or another, in turn on one server: tokens per second of all answers
    together, and the seconds of each.
    """

    gain: RatioEstimate
    speed: float
    plain_speed: float
    tokens_per_step: float
    guesses_per_step: float
    same: int
    num: int
    seconds: Sequence[tuple[float, float]] = ()


def warm_up(server: Endpoint, asked: TuningPrompts, way: DecodingMode, watch: Watch) -> None:
    """Let a server learn what pays from some that do not count, and that nobody guesses from."""
    for number, question in enumerate(asked.some(WARM).questions):
        watch("warming up")
        apart = replace(way, salt=f"{way.salt}, warming up").asks(number)
        server.chat(question.text, asked.sampling(question), asked.num_tokens, apart)


def measure(
    server: Endpoint, asked: TuningPrompts, way: DecodingMode, watch: Watch, against: DecodingMode = OFF
) -> Measured:
    """Ask everything both ways, in turn."""
    pairs = []
    for number, question in enumerate(asked.questions):
        watch(f"a real run, {number + 1} of {len(asked.questions)}")
        said = [
            server.chat(question.text, asked.sampling(question), asked.num_tokens, each.asks(number))
            for each in ((against, way) if number % 2 else (way, against))
        ]
        plain, ours = said if number % 2 else said[::-1]
        pairs.append(MeasuredPair(plain, ours))
    timed = [each for each in pairs if each.is_timed]
    if not timed:
        raise ServerFailed("every answer is too short to be timed: give prompts with longer answers")
    plain_seconds, seconds = (np.array(each) for each in zip(*[each.seconds for each in timed], strict=True))
    tokens = sum(each.plain.num_later for each in timed)
    steps = sum(each.ours.num_steps or each.ours.num_later for each in timed)
    return Measured(
        ratio_of_sums(plain_seconds, seconds),
        tokens / float(seconds.sum()),
        tokens / float(plain_seconds.sum()),
        sum(each.ours.num_later for each in timed) / steps,
        sum(sum(each.ours.guessed or ()) for each in timed) / steps,
        sum(each.plain.token_ids == each.ours.token_ids for each in pairs),
        len(pairs),
        [(float(one), float(other)) for one, other in zip(plain_seconds, seconds, strict=True)],
    )


def predicted_by(choice: Choice, found: Measured) -> Prediction:
    """A choice that no replay can judge, by a run of some of the prompts."""
    return Prediction(choice, found.gain, found.tokens_per_step, found.guesses_per_step, measured=True)
