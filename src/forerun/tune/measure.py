"""Runs against servers: the baseline that predictions need, and measured speedups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Final

import numpy as np

from forerun.bench.ratios import RatioEstimate, ratio_of_sums
from forerun.bench.record import StepCosts
from forerun.bench.replay import MIN_OUTPUT_TOKENS
from forerun.bench.served_model import (
    SPEC_DECODE_METRICS,
    ServedModel,
    server_environment,
    vllm_server_flags,
)
from forerun.bench.server_costs import read_step_costs
from forerun.bench.suites import Question
from forerun.bench.transcripts import Transcript
from forerun.config import SpeculationConfig
from forerun.errors import ServerFailed, UnreadablePrompts
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint
from forerun.servers.processes import forerun_command, started
from forerun.servers.streaming import StreamedAnswer
from forerun.tune.predict import BaselineRun, Choice, Prediction, ReportProgress
from forerun.tune.workload import BASELINE_MODE, DecodingMode, TuningPrompts

NUM_WARMUP: Final = 4
"""Uncounted prompts of a decoding mode, in which the controller learns acceptance rates."""

BASELINE_CONCURRENCY: Final = 8
"""Concurrency of the baseline run whose outputs are replayed; its timing is not used."""

NUM_TIMED: Final = 4
"""Baseline requests sent one at a time to measure the time of a token, right before step costs are read."""


@contextmanager
def serving(model: ServedModel, config: SpeculationConfig) -> Iterator[Endpoint]:
    """Run `forerun serve` with a configuration. The log of a server that fails is kept."""
    with TemporaryDirectory() as folder, _log() as log:
        speculation = Path(folder) / "speculation.json"
        speculation.write_text(config.model_dump_json(exclude_defaults=True), encoding="utf-8")
        flags = [*vllm_server_flags(model), *SPEC_DECODE_METRICS]
        command = forerun_command(model.path, "--speculation", str(speculation), *flags)
        environment = server_environment()
        with started(command, log, environment=environment, startup_timeout=model.startup_timeout) as server:
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


def run_baseline(
    server: Endpoint, prompts: TuningPrompts, concurrency: int, report_progress: ReportProgress
) -> list[StreamedAnswer]:
    """Send every prompt without speculation."""

    def send(question: Question) -> StreamedAnswer:
        fields = BASELINE_MODE.request_fields(0)
        return server.chat(question.text, prompts.sampling(question), prompts.num_tokens, fields)

    answers = []
    for answer in map_concurrent(send, prompts.questions, concurrency):
        answers.append(answer)
        num = f"{len(answers)} of {len(prompts.questions)}"
        report_progress(f"baseline at concurrency {concurrency}: {num}")
    return answers


def measure_baseline(
    server: Endpoint, prompts: TuningPrompts, report_progress: ReportProgress
) -> tuple[BaselineRun, float]:
    """Run the baseline; returns it with its tokens per second at concurrency 1."""
    answers = run_baseline(server, prompts, BASELINE_CONCURRENCY, report_progress)
    timed = run_baseline(server, prompts.sample(NUM_TIMED), 1, report_progress)
    costs = step_costs(server, sampled=bool(prompts.temperature))
    recorded = [
        Transcript(question.category, np.array(each.prompt_ids), np.array(each.token_ids))
        for question, each in zip(prompts.questions, answers, strict=True)
    ]
    speeds = [each.tokens_per_second for each in timed if each.tokens_per_second]
    if not speeds:
        raise UnreadablePrompts("every output is too short to be timed: use prompts with longer outputs")
    speed = float(np.median(speeds))
    return BaselineRun(recorded, costs, 1 / speed, prompts.num_tokens), speed


def step_costs(server: Endpoint, *, sampled: bool) -> StepCosts:
    """The server's step costs by rows: profiled at its start and updated since."""
    costs = read_step_costs(server).get(sampled)
    if not costs:
        raise ServerFailed("the server exports no step costs: expected a server that `forerun serve` started")
    return costs


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """The answers to one question from the baseline and from another mode."""

    baseline: StreamedAnswer
    speculative: StreamedAnswer

    @property
    def is_timed(self) -> bool:
        """Whether both outputs are long enough to have a speed."""
        both = (self.baseline, self.speculative)
        return all(each.tokens_per_second and each.num_tokens >= MIN_OUTPUT_TOKENS for each in both)

    @property
    def seconds(self) -> tuple[float, float]:
        """The time that the baseline's tokens after the first event take at the speed of either mode."""
        num = self.baseline.num_later_tokens
        speeds = (self.baseline.tokens_per_second or 1.0, self.speculative.tokens_per_second or 1.0)
        return num / speeds[0], num / speeds[1]


@dataclass(frozen=True, slots=True)
class Measured:
    """A decoding mode against the baseline, or another mode, alternating on one server: tokens per second
    over all outputs together, and the seconds of each pair.
    """

    speedup: RatioEstimate
    speed: float
    baseline_speed: float
    tokens_per_step: float
    draft_tokens_per_step: float
    num_identical: int
    num: int
    seconds: Sequence[tuple[float, float]] = ()


def warm_up(
    server: Endpoint, prompts: TuningPrompts, mode: DecodingMode, report_progress: ReportProgress
) -> None:
    """Send uncounted requests, so that the controller learns; under a salt that no later request has."""
    for number, question in enumerate(prompts.sample(NUM_WARMUP).questions):
        report_progress("warming up")
        fields = replace(mode, salt=f"{mode.salt}, warming up").request_fields(number)
        server.chat(question.text, prompts.sampling(question), prompts.num_tokens, fields)


def measure(
    server: Endpoint,
    prompts: TuningPrompts,
    mode: DecodingMode,
    report_progress: ReportProgress,
    against: DecodingMode = BASELINE_MODE,
) -> Measured:
    """Send every prompt in both modes, alternating which one is first."""
    pairs: list[MeasuredPair] = []
    for number, question in enumerate(prompts.questions):
        report_progress(f"measuring: {number + 1} of {len(prompts.questions)}")
        answers = [
            server.chat(
                question.text, prompts.sampling(question), prompts.num_tokens, each.request_fields(number)
            )
            for each in ((against, mode) if number % 2 else (mode, against))
        ]
        baseline, speculative = answers if number % 2 else answers[::-1]
        pairs.append(MeasuredPair(baseline, speculative))
    timed = [each for each in pairs if each.is_timed]
    if not timed:
        raise ServerFailed("every output is too short to be timed: use prompts with longer outputs")
    baseline_seconds, seconds = (
        np.array(each) for each in zip(*[each.seconds for each in timed], strict=True)
    )
    num_tokens = sum(each.baseline.num_later_tokens for each in timed)
    num_steps = sum(each.speculative.num_steps or each.speculative.num_later_tokens for each in timed)
    return Measured(
        ratio_of_sums(baseline_seconds, seconds),
        num_tokens / float(seconds.sum()),
        num_tokens / float(baseline_seconds.sum()),
        sum(each.speculative.num_later_tokens for each in timed) / num_steps,
        sum(sum(each.speculative.drafted_per_step or ()) for each in timed) / num_steps,
        sum(each.baseline.token_ids == each.speculative.token_ids for each in pairs),
        len(pairs),
        [(float(one), float(other)) for one, other in zip(baseline_seconds, seconds, strict=True)],
    )


def prediction_from_run(choice: Choice, found: Measured) -> Prediction:
    """A prediction from a measured run, for a choice that cannot be replayed."""
    return Prediction(
        choice, found.speedup, found.tokens_per_step, found.draft_tokens_per_step, measured=True
    )
