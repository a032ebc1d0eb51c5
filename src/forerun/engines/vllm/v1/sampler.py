"""The sampler that replaces vLLM's rejection sampler: non-speculative sampling, position by position.

A draft token is accepted if non-speculative sampling takes it at its position. For each position in turn, and
for the requests whose draft tokens were all accepted so far, vLLM's own sampler runs on one row per request,
in the state it has without speculation: accepted tokens are part of the output, and a request's generator
advances once per emitted token. So everything vLLM's sampler applies (penalties, bad words, minimum tokens,
min-p, logit biases, logits processors, logprobs) applies here unchanged, and this module does not depend on
the list.

If no setting depends on the output, whole drafts are sampled at once: greedily, or by `gumbel_sampling` where
the batch sets neither top-k nor top-p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from forerun.config import SpeculationConfig
from forerun.engines.vllm.request_options import RequestOptions
from forerun.engines.vllm.step_plan import StepPlan
from forerun.engines.vllm.v1.gumbel_sampling import sample_chains
from forerun.engines.vllm.v1.sampling_settings import (
    below_min_tokens,
    is_argmax_only,
    is_row_independent,
    is_unmasked,
    must_match,
    one_row_per_request,
    select_requests,
)
from forerun.engines.vllm.v1.verification import (
    RejectionRequest,
    is_distribution,
    target_logits,
    verify_requests,
)
from forerun.types.sampling import GREEDY_TEMPERATURE

PLACEHOLDER_TOKEN_ID = -1
"""Padding after the last output token of a request, as in vLLM."""


class SpeculativeSampler(torch.nn.Module):
    """Replaces vLLM's rejection sampler.

    Chosen draft tokens, and all draft tokens of requests with a seed, a grammar or logprobs, are compared
    with the tokens of non-speculative sampling. Draft tokens that the draft model sampled are verified
    against its q, and so are requests that allow lenience: for them vLLM's sampler supplies its distribution.
    `samples_chains` says that `gumbel_sampling` reproduces vLLM's sampler.
    """

    def __init__(
        self, stock_sampler: Any, runner: Any, config: SpeculationConfig, *, samples_chains: bool = False
    ) -> None:
        super().__init__()
        self.samples_chains = samples_chains
        self.stock_sampler = stock_sampler
        self.runner = runner
        self.config = config
        self.drafter_names = config.names
        self.plan = StepPlan()

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """The accepted tokens of every request and one more: [requests, max_spec_len + 1].

        Ignores `draft_probs`, which has no rows for looked-up draft tokens; q is read from the runner.
        """
        del draft_probs
        sampling_metadata = one_row_per_request(sampling_metadata)
        drafts = _split(metadata.draft_token_ids.tolist(), metadata.num_draft_tokens)
        rejection = self._rejection_requests(drafts, sampling_metadata, logits.shape[-1])
        if not rejection and is_argmax_only(sampling_metadata):
            rows = self.stock_sampler.greedy_sample(logits.to(torch.float32)).tolist()
            return _match_rows(drafts, rows, metadata.max_spec_len, logits.device)
        if self.samples_chains and not rejection and is_unmasked(sampling_metadata):
            temperature, generators = sampling_metadata.temperature, sampling_metadata.generators
            emitted = sample_chains(logits, drafts, temperature, generators)
            if emitted is not None:
                tokens = _padded(emitted, metadata.max_spec_len + 1, logits.device)
                return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)
        return self._sample_positions(drafts, rejection, metadata.max_spec_len, logits, sampling_metadata)

    def _sample_positions(
        self,
        drafts: Sequence[Sequence[int]],
        rejection: dict[int, RejectionRequest],
        max_depth: int,
        logits: torch.Tensor,
        sampling: SamplingMetadata,
    ) -> SamplerOutput:
        """Sample position after position while any request's draft tokens are all accepted."""
        starts = torch.tensor([0, *(len(draft) + 1 for draft in drafts)][:-1]).cumsum(0)
        emitted: list[list[int]] = [[] for _ in drafts]
        active = list(range(len(drafts)))
        logprobs: list[LogprobsTensors] = []
        with self._extended_outputs(emitted) as update:
            for position in range(max_depth + 1):
                requests = active if is_row_independent(sampling) else list(range(len(drafts)))
                depths = torch.tensor([min(position, len(drafts[request])) for request in requests])
                rows = logits[(starts[requests] + depths).to(logits.device)]
                is_active = set(active)
                settings = select_requests(sampling, requests, is_active)
                deferred = [(row, rejection[at]) for row, at in enumerate(requests) if at in rejection]
                p = target_logits(self.stock_sampler, rows.clone(), settings) if deferred else rows
                output = self.stock_sampler(rows, settings)
                tokens = output.sampled_token_ids[:, 0].tolist()
                for row, each in deferred:
                    tokens[row] = each.observe(position, p[row], tokens[row])
                for row, request in enumerate(requests):
                    if request in is_active:
                        emitted[request].append(tokens[row])
                if output.logprobs_tensors is not None:
                    logprobs.append(output.logprobs_tensors)
                active = [at for at in active if drafts[at][position : position + 1] == emitted[at][-1:]]
                if not active:
                    break
                update(active)
        verified = verify_requests([*rejection.values()], self.config.verifier)
        for request, tokens in zip(rejection, verified, strict=True):
            emitted[request] = tokens
        return SamplerOutput(
            sampled_token_ids=_padded(emitted, max_depth + 1, logits.device),
            logprobs_tensors=_stacked(logprobs, max_depth + 1) if logprobs else None,
        )

    @contextmanager
    def _extended_outputs(self, emitted: list[list[int]]) -> Iterator[Any]:
        """Within this block, the outputs that vLLM's sampler sees end with the tokens accepted here.

        The lists are vLLM's own and are truncated afterwards: the runner appends the emitted tokens itself.
        """
        outputs = self.runner.input_batch.req_output_token_ids[: len(emitted)]
        lengths = [0 if output is None else len(output) for output in outputs]
        processors = list(self.runner.input_batch.logitsprocs.all)

        def update(active: Sequence[int]) -> None:
            for request in active:
                if request < len(outputs) and outputs[request] is not None:
                    outputs[request].append(emitted[request][-1])
            for processor in processors:
                processor.update_state(None)

        try:
            yield update
        finally:
            for output, length in zip(outputs, lengths, strict=True):
                if output is not None:
                    del output[length:]

    def _rejection_requests(
        self, drafts: Sequence[Sequence[int]], sampling: SamplingMetadata, vocab_size: int
    ) -> dict[int, RejectionRequest]:
        """The requests, by index, that need rejection sampling."""
        names = self.runner.input_batch.req_ids
        if must_match(sampling) or len(names) < len(drafts):  # vLLM warms up with an empty batch
            return {}
        rejection = {}
        for request, draft in enumerate(drafts):
            if draft and not any(request in min_tokens for min_tokens in below_min_tokens(sampling)):
                q = self._q(names[request], len(draft), vocab_size)
                lenience = self._lenience(names[request])
                greedy = sampling.all_greedy or float(sampling.temperature[request]) < GREEDY_TEMPERATURE
                matched = greedy or request in sampling.generators or self._has_grammar(names[request])
                if lenience < 1:
                    rejection[request] = RejectionRequest(draft, None if matched else q, greedy, lenience)
                elif q is not None and not matched:
                    rejection[request] = RejectionRequest(draft, q, greedy, lenience)
        return rejection

    def _q(self, name: str, num_draft_tokens: int, vocab_size: int) -> torch.Tensor | None:
        """The distributions that a request's draft tokens were sampled from; None if they were chosen."""
        runner = self.runner
        if name in self.plan.q:
            return self.plan.q[name].dense(num_draft_tokens, vocab_size)
        if name not in self.plan.sampled or runner._draft_probs is None:
            return None
        if name not in runner._draft_prob_req_ids:
            return None
        q = runner._draft_probs[runner._draft_prob_req_ids.index(name), :num_draft_tokens]
        return q if len(q) == num_draft_tokens and is_distribution(q) else None

    def _lenience(self, name: str) -> float:
        requested = RequestOptions.parse_or_default(
            self.runner.requests[name].sampling_params.extra_args, self.drafter_names
        ).lenience
        return self.config.lenience if requested is None else requested

    def _has_grammar(self, name: str) -> bool:
        """Whether a grammar may have truncated the draft depending on its tokens."""
        return self.runner.requests[name].sampling_params.structured_outputs is not None


def _split(tokens: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Draft tokens by request."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [tokens[start:end] for start, end in pairwise(ends)]


def _match_rows(
    drafts: Sequence[Sequence[int]], rows: list[int], max_depth: int, device: torch.device
) -> SamplerOutput:
    """Accept draft tokens while they equal the target's tokens, which are given for all rows."""
    emitted, start = [], 0
    for draft in drafts:
        target = rows[start : start + len(draft) + 1]
        num_accepted = 0
        while num_accepted < len(draft) and target[num_accepted] == draft[num_accepted]:
            num_accepted += 1
        emitted.append(target[: num_accepted + 1])
        start += len(draft) + 1
    return SamplerOutput(sampled_token_ids=_padded(emitted, max_depth + 1, device), logprobs_tensors=None)


def _padded(emitted: Sequence[Sequence[int]], width: int, device: torch.device) -> torch.Tensor:
    """Output tokens as the padded matrix that vLLM expects."""
    rows = [[*tokens, *[PLACEHOLDER_TOKEN_ID] * (width - len(tokens))] for tokens in emitted]
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _stacked(levels: list[LogprobsTensors], width: int) -> LogprobsTensors:
    """Logprobs request by request; positions after the last output are padded with the last level."""
    levels = levels + [levels[-1]] * (width - len(levels))
    return LogprobsTensors(
        logprob_token_ids=_interleaved([level.logprob_token_ids for level in levels]),
        logprobs=_interleaved([level.logprobs for level in levels]),
        selected_token_ranks=_interleaved([level.selected_token_ranks for level in levels]),
    )


def _interleaved(levels: list[torch.Tensor]) -> torch.Tensor:
    """Rows request by request, from rows position by position."""
    return torch.stack(levels, dim=1).flatten(0, 1)
