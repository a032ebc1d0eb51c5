"""The requests of a self-test: those whose outputs are compared, and those that measure throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forerun.audit.prompts import DEFAULT_PROMPTS
from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.servers.completions import Prompt
from forerun.types import SamplingParams

GREEDY: Final = SamplingParams(temperature=0.0)

SEEDED: Final = (
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.0, top_k=50, repetition_penalty=1.1),
)
"""The settings of seeded requests; each request has a seed of its own."""

OPEN_ENDED: Final = "open-ended"
REPETITIVE: Final = "repetitive"

_NUM_PROMPTS: Final = 16
_TOPICS: Final = (
    "the history of the bicycle",
    "how bread is baked",
    "the life of a lighthouse keeper",
    "why the sky is blue",
    "a journey through the desert",
    "the invention of printing",
    "how bees communicate",
    "an old house by the sea",
    "the rules of chess",
    "what makes a good teacher",
    "the formation of mountains",
    "a winter market",
    "how ships are built",
    "the first day at a new job",
    "the migration of birds",
    "a letter that was never sent",
)


@dataclass(frozen=True, slots=True)
class SelftestPlan:
    """The requests of a self-test and the number of tokens of each.

    `workloads` are the prompts by kind of text, one for each request in flight at the highest concurrency.
    """

    prompts: tuple[Prompt, ...]
    workloads: Mapping[str, tuple[Prompt, ...]]
    max_tokens: int = 64
    num_alone: int = 4
    """Prompts that are also sent one at a time: one row rounds differently from several."""

    num_probes: int = 3
    """Prompts on which the rounding of the baseline is measured."""

    num_probe_tokens: int = 6
    concurrencies: tuple[int, ...] = (1, 16)
    num_rounds: int = 3
    load_tokens: int = 96
    seconds_per_round: float = 4.0
    """Intended duration of a round at concurrency 1, which sends as many prompts as fit."""

    error_rate: float = 0.001
    """Probability of a false failure of a seeded check."""

    @property
    def greedy_requests(self) -> list[tuple[Prompt, SamplingParams]]:
        """Every prompt at temperature 0."""
        return [(prompt, GREEDY) for prompt in self.prompts]

    @property
    def alone_requests(self) -> list[tuple[Prompt, SamplingParams]]:
        """Some of the prompts at temperature 0, spread over all, to be sent one at a time."""
        requests = self.greedy_requests
        return requests[:: max(1, len(requests) // self.num_alone)][: self.num_alone]

    @property
    def seeded_requests(self) -> list[tuple[Prompt, SamplingParams]]:
        """Every prompt with each of the seeded settings."""
        pairs = [(prompt, sampling) for sampling in SEEDED for prompt in self.prompts]
        return [(prompt, replace(sampling, seed=seed)) for seed, (prompt, sampling) in enumerate(pairs)]


def full_plan() -> SelftestPlan:
    """The self-test of a GPU: about five minutes with the start of four servers."""
    workloads = {CODE_EDITING: _code_editing(), OPEN_ENDED: _open_ended()}
    half = _NUM_PROMPTS // 2
    return SelftestPlan(tuple(each for prompts in workloads.values() for each in prompts[:half]), workloads)


def quick_plan() -> SelftestPlan:
    """A few short requests: shows that everything works, and measures nothing precisely."""
    prompts = tuple(map(Prompt, DEFAULT_PROMPTS))
    return SelftestPlan(
        prompts,
        {REPETITIVE: prompts},
        max_tokens=16,
        num_alone=2,
        num_probes=1,
        num_probe_tokens=2,
        concurrencies=(1, len(prompts)),
        num_rounds=1,
        load_tokens=16,
    )


def _code_editing() -> tuple[Prompt, ...]:
    """Requests whose answers repeat most of the prompt: the shortest functions of the suite."""
    questions = sorted(read_suite(CODE_EDITING), key=lambda question: len(question.text))
    return tuple(Prompt(f"{each.text}\n\nAnswer:\n\n```python\n") for each in questions[:_NUM_PROMPTS])


def _open_ended() -> tuple[Prompt, ...]:
    """Requests whose answers repeat little."""
    return tuple(Prompt(f"Write an essay about {topic}.\n\n") for topic in _TOPICS)


def single_prompts(prompts: Sequence[Prompt], number: int, count: int) -> list[Prompt]:
    """The prompts of round `number` at concurrency 1, `count` of them: other prompts in every round."""
    return [prompts[(number * count + at) % len(prompts)] for at in range(count)]
