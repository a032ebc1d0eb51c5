"""The sampling settings of a batch: what they permit, and those of some of its requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata


def one_row_per_request(sampling: SamplingMetadata) -> SamplingMetadata:
    """Settings for one row per request; vLLM's metadata describes one row per draft token."""
    if sampling.thinking_budget_state_holder is not None:
        sampling.thinking_budget_state_holder.in_spec_mode = False
    return replace(sampling, spec_token_ids=None)


def must_match(sampling: SamplingMetadata) -> bool:
    """Whether the batch rules out rejection sampling.

    Logprobs belong to sampled tokens, and a stateful logits processor cannot roll back a rejected token.
    """
    known = (MinTokensLogitsProcessor, MinPLogitsProcessor, LogitBiasLogitsProcessor)
    return bool(
        sampling.max_num_logprobs is not None
        or sampling.logprob_token_ids
        or sampling.thinking_budget_state_holder is not None
        or not all(isinstance(processor, known) for processor in sampling.logitsprocs.all)
    )


def below_min_tokens(sampling: SamplingMetadata) -> Iterator[Collection[int]]:
    """Requests below their minimum number of tokens: the processor's state cannot be rolled back."""
    for processor in sampling.logitsprocs.non_argmax_invariant:
        if isinstance(processor, MinTokensLogitsProcessor):
            yield processor.min_toks


def select_requests(
    sampling: SamplingMetadata, requests: Sequence[int], active: Set[int]
) -> SamplingMetadata:
    """The settings of these requests, in this order, with generators for the active ones only."""
    generators = {
        row: sampling.generators[request]
        for row, request in enumerate(requests)
        if request in active and request in sampling.generators
    }
    if not is_row_independent(sampling):
        return replace(sampling, generators=generators)
    rows = list(requests)
    return replace(
        sampling,
        generators=generators,
        temperature=None if sampling.temperature is None else sampling.temperature[rows],
        top_p=None if sampling.top_p is None else sampling.top_p[rows],
        top_k=None if sampling.top_k is None else sampling.top_k[rows],
    )


def is_argmax_only(sampling: SamplingMetadata) -> bool:
    """Whether every request is greedy and no setting changes the argmax."""
    return bool(sampling.all_greedy and is_row_independent(sampling))


def is_unmasked(sampling: SamplingMetadata) -> bool:
    """Whether no request of the batch uses a setting other than the temperature."""
    return bool(sampling.top_k is None and sampling.top_p is None and is_row_independent(sampling))


def is_row_independent(sampling: SamplingMetadata) -> bool:
    """Whether no request of the batch uses a setting other than temperature, top-k and top-p."""
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
    """Whether a processor of vLLM has no request to apply to; False for processors of others."""
    if isinstance(processor, MinTokensLogitsProcessor):
        return not processor.min_toks
    if isinstance(processor, LogitBiasLogitsProcessor):
        return not processor.biases
    return isinstance(processor, MinPLogitsProcessor) and processor.min_p_count == 0
