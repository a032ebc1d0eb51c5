"""The baseline's outputs, recorded while it runs, with what classifies differences from them later.

The two servers never run at the same time, so everything that needs the baseline is asked of it beforehand:
the log-probabilities of its greedy outputs, and the size of its rounding errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.parity.near_ties import TieRuling
from forerun.audit.rounding_error import NUM_LOGPROBS, ServerRounding, measure_server
from forerun.errors import UnreadableAnswer
from forerun.selftest.plan import SelftestPlan
from forerun.servers.completions import Completion, Prompt, Token
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

CONCURRENCY: Final = 8
"""Requests in flight while outputs are recorded and compared."""

NUM_SIGMAS: Final = 6
"""A near-tie is a gap of two log-probabilities of at most this many typical errors of one: four standard
deviations of the difference of two independent errors.
"""

SampledRequest = tuple[Prompt, SamplingParams]


@dataclass(frozen=True, slots=True)
class RecordedOutputs:
    """Outputs of the baseline in the order of the plan's requests, and its rounding."""

    greedy: tuple[Completion, ...]
    alone: tuple[Completion, ...]
    seeded: tuple[Completion, ...]
    rounding: tuple[ServerRounding, ...]

    @property
    def sigma(self) -> float:
        """The typical error of a log-probability, at the worst position measured."""
        return max(each.sigma for each in self.rounding)

    def allowance(self, pair: AnswerPair) -> tuple[float, float]:
        """Sigma and epsilon for a pair of outputs."""
        return self.sigma, max(each.epsilon(pair.sampling) for each in self.rounding)


def record_outputs(server: Endpoint, plan: SelftestPlan) -> RecordedOutputs:
    """Record the baseline's outputs, and measure its rounding."""
    greedy = request_all(server, plan.greedy_requests, plan.max_tokens, num_logprobs=NUM_LOGPROBS)
    alone = request_all(
        server, plan.alone_requests, plan.max_tokens, num_logprobs=NUM_LOGPROBS, concurrency=1
    )
    seeded = request_all(server, plan.seeded_requests, plan.max_tokens)
    probes = plan.prompts[:: max(1, len(plan.prompts) // plan.num_probes)][: plan.num_probes]
    rounding = tuple(measure_server(server, prompt, plan.num_probe_tokens, CONCURRENCY) for prompt in probes)
    return RecordedOutputs(tuple(greedy), tuple(alone), tuple(seeded), rounding)


def request_all(
    server: Endpoint,
    requests: Sequence[SampledRequest],
    max_tokens: int,
    *,
    num_logprobs: int | None = None,
    concurrency: int = CONCURRENCY,
) -> list[Completion]:
    """The output of every request, in order, with `concurrency` requests in flight."""

    def send(request: SampledRequest) -> Completion:
        return server.complete(*request, max_tokens, num_logprobs=num_logprobs)[0]

    return list(map_concurrent(send, requests, concurrency))


def pair_outputs(
    requests: Sequence[SampledRequest], baseline: Sequence[Completion], candidate: Sequence[Completion]
) -> Iterator[AnswerPair]:
    """The outputs of both servers for each request."""
    for (prompt, sampling), one, other in zip(requests, baseline, candidate, strict=True):
        ids = one.prompt_ids or other.prompt_ids
        yield AnswerPair(
            Prompt(prompt.text, ids), sampling, one.tokens, other.tokens, num_accepted=other.num_accepted
        )


class LogprobReferee:
    """Classifies first differences of greedy outputs by the baseline's own log-probabilities."""

    def __init__(self, baseline: Sequence[Completion], sigma: float) -> None:
        self._bound = NUM_SIGMAS * sigma
        self._by_prompt = {each.prompt_ids: each for each in baseline}

    def classify(
        self, prompt: Sequence[int], prefix: Sequence[Token], tokens: tuple[Token, Token], _: SamplingParams
    ) -> TieRuling:
        """The gap of two tokens; one that is not among the most likely counts as the last of these."""
        logprobs = self._by_prompt[tuple(prompt)].logprobs
        if len(prefix) >= len(logprobs) or not logprobs[len(prefix)]:
            raise UnreadableAnswer(
                f"the baseline returned no log-probabilities at position {len(prefix)} of an output, so a"
                " difference there cannot be classified"
            )
        known = logprobs[len(prefix)]
        one, other = (known.get(token, min(known.values())) for token in tokens)
        return TieRuling(abs(one - other), self._bound)

    @property
    def definition(self) -> str:
        """The definition of a near-tie."""
        return (
            f"near-tie: log-probabilities of the baseline at most {self._bound:.2g} apart, {NUM_SIGMAS} times"
            " the error measured between the same positions in batches of different shapes"
        )
