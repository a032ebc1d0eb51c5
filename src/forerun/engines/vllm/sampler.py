"""The sampler that keeps vLLM's words: plain sampling, one position after the other.

A guess stands if it is the token that plain sampling takes at its position, so the sampler asks plain
sampling. Position by position, for the requests whose guesses have stood so far, vLLM's own sampler is run on
one row a request, in the very state it would be in without speculation: what was kept before counts as said,
and a request's generator draws once for every token that is said and for no other. Whatever vLLM's sampler
does (penalties, bad words, minimum tokens, min-p, biases, logits processors, logprobs), it does here, and in
the same way; this module does not know what that is.

Where every request is greedy and nothing looks at what was said, all rows are judged at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from forerun.config import SpeculationConfig
from forerun.engines.vllm.request_options import RequestOptions
from forerun.engines.vllm.step_plan import StepPlan
from forerun.engines.vllm.verification import RejectionRequest, is_distribution, verify_requests, weights

_GREEDY = 1e-5
"""Below this temperature vLLM takes the likeliest token."""

NOTHING = -1
"""What vLLM puts where a request says less than others."""


class SpeculativeSampler(torch.nn.Module):
    """Takes the place of vLLM's rejection sampler.

    Guesses that were chosen, and all guesses for requests with a seed, a grammar or logprobs, are followed.
    Guesses that the draft model drew are judged against its q, and so are requests that allow lenience: for
    them plain sampling is asked for its distribution instead of a token.
    """

    def __init__(self, plain: Any, runner: Any, config: SpeculationConfig) -> None:
        super().__init__()
        self.plain = plain
        self.runner = runner
        self.config = config
        self.names = config.names
        self.plan = StepPlan()

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """What every request says, up to the first token that was not guessed: [requests, depth + 1].

        `draft_probs` is not looked at: it has no place for guesses from elsewhere. The runner keeps q.
        """
        del draft_probs
        sampling_metadata = _without_layout(sampling_metadata)
        guesses = _split(metadata.draft_token_ids.tolist(), metadata.num_draft_tokens)
        judged = self._judged(guesses, sampling_metadata)
        if not judged and _is_plain_greedy(sampling_metadata):
            rows = self.plain.greedy_sample(logits.to(torch.float32)).tolist()
            return _follow_rows(guesses, rows, metadata.max_spec_len, logits.device)
        return self._walk(guesses, judged, metadata.max_spec_len, logits, sampling_metadata)

    def _walk(
        self,
        guesses: Sequence[Sequence[int]],
        judged: dict[int, RejectionRequest],
        deepest: int,
        logits: torch.Tensor,
        sampling: SamplingMetadata,
    ) -> SamplerOutput:
        """Plain sampling at every position in turn, as long as any request's guesses stand."""
        starts = torch.tensor([0, *(len(guess) + 1 for guess in guesses)][:-1]).cumsum(0)
        said: list[list[int]] = [[] for _ in guesses]
        alive = list(range(len(guesses)))
        logprobs: list[LogprobsTensors] = []
        with self._counting_as_said(said) as update:
            for position in range(deepest + 1):
                asked = alive if _is_bare(sampling) else list(range(len(guesses)))
                ahead = torch.tensor([min(position, len(guesses[place])) for place in asked])
                rows = logits[(starts[asked] + ahead).to(logits.device)]
                settings = _of(sampling, asked, alive)
                waiting = [(row, judged[place]) for row, place in enumerate(asked) if place in judged]
                p = weights(self.plain, rows.clone(), settings) if waiting else rows
                output = self.plain(rows, settings)
                tokens = output.sampled_token_ids[:, 0].tolist()
                for row, each in waiting:
                    tokens[row] = each.see(position, p[row], tokens[row])
                for row, place in enumerate(asked):
                    if place in alive:
                        said[place].append(tokens[row])
                if output.logprobs_tensors is not None:
                    logprobs.append(output.logprobs_tensors)
                alive = [at for at in alive if guesses[at][position : position + 1] == said[at][-1:]]
                if not alive:
                    break
                update(alive)
        for place, tokens in zip(
            judged, verify_requests([*judged.values()], self.config.verifier), strict=True
        ):
            said[place] = tokens
        return SamplerOutput(
            sampled_token_ids=_padded(said, deepest + 1, logits.device),
            logprobs_tensors=_stacked(logprobs, deepest + 1) if logprobs else None,
        )

    @contextmanager
    def _counting_as_said(self, said: list[list[int]]) -> Iterator[Any]:
        """While this lasts, the outputs that vLLM's sampler sees end with what was kept here.

        They are vLLM's own lists and get back their length at the end: the runner appends what is said.
        """
        outputs = self.runner.input_batch.req_output_token_ids[: len(said)]
        lengths = [0 if output is None else len(output) for output in outputs]
        processors = list(self.runner.input_batch.logitsprocs.all)

        def update(alive: Sequence[int]) -> None:
            for request in alive:
                if request < len(outputs) and outputs[request] is not None:
                    outputs[request].append(said[request][-1])
            for processor in processors:
                processor.update_state(None)

        try:
            yield update
        finally:
            for output, length in zip(outputs, lengths, strict=True):
                if output is not None:
                    del output[length:]

    def _judged(
        self, guesses: Sequence[Sequence[int]], sampling: SamplingMetadata
    ) -> dict[int, RejectionRequest]:
        """The requests that are not followed."""
        names = self.runner.input_batch.req_ids
        if _must_follow(sampling) or len(names) < len(guesses):  # vLLM warms up with an empty batch
            return {}
        judged = {}
        for place, guess in enumerate(guesses):
            if guess and not any(place in min_tokens for min_tokens in _minimums(sampling)):
                q, lenience = self._q(names[place], len(guess)), self._lenience(names[place])
                greedy = sampling.all_greedy or float(sampling.temperature[place]) < _GREEDY
                followed = greedy or place in sampling.generators or self._is_constrained(names[place])
                if lenience < 1:
                    judged[place] = RejectionRequest(guess, None if followed else q, greedy, lenience)
                elif q is not None and not followed:
                    judged[place] = RejectionRequest(guess, q, greedy, lenience)
        return judged

    def _q(self, name: str, num_guesses: int) -> torch.Tensor | None:
        """What a request's guesses were drawn from, if the draft model drew them."""
        runner = self.runner
        if name not in self.plan.sampled or runner._draft_probs is None:
            return None
        if name not in runner._draft_prob_req_ids:
            return None
        q = runner._draft_probs[runner._draft_prob_req_ids.index(name), :num_guesses]
        return q if len(q) == num_guesses and is_distribution(q) else None

    def _lenience(self, name: str) -> float:
        asked = RequestOptions.read(
            self.runner.requests[name].sampling_params.extra_args, self.names
        ).lenience
        return self.config.lenience if asked is None else asked

    def _is_constrained(self, name: str) -> bool:
        """Whether a grammar may have cut the guesses short by their values."""
        return self.runner.requests[name].sampling_params.structured_outputs is not None


def _without_layout(sampling: SamplingMetadata) -> SamplingMetadata:
    """Settings for rows of which there is one a request: vLLM's count of guessed rows does not hold here."""
    if sampling.thinking_budget_state_holder is not None:
        sampling.thinking_budget_state_holder.in_spec_mode = False
    return replace(sampling, spec_token_ids=None)


def _must_follow(sampling: SamplingMetadata) -> bool:
    """Whether nobody can be judged: for logprobs of what was said, or for processors that remember what
    was said and could not unlearn a guess that fell.
    """
    known = (MinTokensLogitsProcessor, MinPLogitsProcessor, LogitBiasLogitsProcessor)
    return bool(
        sampling.max_num_logprobs is not None
        or sampling.logprob_token_ids
        or sampling.thinking_budget_state_holder is not None
        or not all(isinstance(processor, known) for processor in sampling.logitsprocs.all)
    )


def _minimums(sampling: SamplingMetadata) -> Iterator[Collection[int]]:
    """The places of requests that are still below their minimum, which is remembered as well."""
    for processor in sampling.logitsprocs.non_argmax_invariant:
        yield getattr(processor, "min_toks", ())


def _of(sampling: SamplingMetadata, asked: Sequence[int], alive: Collection[int]) -> SamplingMetadata:
    """The settings of some requests, in this order; only those that still speak have generators."""
    generators = {
        row: sampling.generators[place]
        for row, place in enumerate(asked)
        if place in alive and place in sampling.generators
    }
    if not _is_bare(sampling):
        return replace(sampling, generators=generators)
    columns = {
        name: None if getattr(sampling, name) is None else getattr(sampling, name)[list(asked)]
        for name in ("temperature", "top_p", "top_k")
    }
    return replace(sampling, generators=generators, **columns)


def _is_plain_greedy(sampling: SamplingMetadata) -> bool:
    """Whether every request takes the likeliest token, and nothing changes which one that is."""
    return bool(sampling.all_greedy and _is_bare(sampling))


def _is_bare(sampling: SamplingMetadata) -> bool:
    """Whether nothing but temperature, top-k and top-p is asked for, by nobody in the batch."""
    return bool(
        sampling.max_num_logprobs is None
        and not sampling.logprob_token_ids
        and sampling.no_penalties
        and sampling.allowed_token_ids_mask is None
        and not sampling.bad_words_token_ids
        and all(_is_idle(processor) for processor in sampling.logitsprocs.all)
        and sampling.thinking_budget_state_holder is None
    )


def _is_idle(processor: Any) -> bool:
    """Whether one of vLLM's own processors has nobody to work for; of others one cannot know."""
    nobody = {} in (getattr(processor, "min_toks", None), getattr(processor, "biases", None))
    return nobody or getattr(processor, "min_p_count", None) == 0


def _split(tokens: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Guesses by request."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [tokens[first:last] for first, last in pairwise(ends)]


def _follow_rows(
    guesses: Sequence[Sequence[int]], rows: list[int], deepest: int, device: torch.device
) -> SamplerOutput:
    """Follow the tokens that the target takes at all rows."""
    said, start = [], 0
    for guess in guesses:
        taken = rows[start : start + len(guess) + 1]
        kept = 0
        while kept < len(guess) and taken[kept] == guess[kept]:
            kept += 1
        said.append(taken[: kept + 1])
        start += len(guess) + 1
    return SamplerOutput(sampled_token_ids=_padded(said, deepest + 1, device), logprobs_tensors=None)


def _padded(said: Sequence[Sequence[int]], width: int, device: torch.device) -> torch.Tensor:
    """What was said, as the rectangle that vLLM expects."""
    rows = [[*tokens, *[NOTHING] * (width - len(tokens))] for tokens in said]
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _stacked(levels: list[LogprobsTensors], width: int) -> LogprobsTensors:
    """Log-probabilities of every position, request by request; what nobody said is filled with the last."""
    levels = levels + [levels[-1]] * (width - len(levels))
    return LogprobsTensors(
        *(
            torch.stack([getattr(level, name) for level in levels], dim=1).flatten(0, 1)
            for name in ("logprob_token_ids", "logprobs", "selected_token_ranks")
        )
    )
