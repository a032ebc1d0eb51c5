"""The `Speculator` of a vLLM configuration, and the outcome of a step in vLLM's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from forerun.control.accounting import Goodput
from forerun.control.step_cost import StepCost
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafters
from forerun.drafters.tree_merge import sources_of
from forerun.engines.guarded_drafter import DraftFormat
from forerun.engines.speculative_step import SpeculativeStep
from forerun.engines.speculator import Speculator
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.startup_log import log_compilation
from forerun.engines.vllm.stats import SpecDecodeStats, logger
from forerun.types import Verdict


def make_stats(vllm_config: Any) -> SpecDecodeStats:
    """Statistics of the configured drafters."""
    num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
    return SpecDecodeStats(speculation_config(vllm_config).names, num_speculative_tokens)


def make_speculator(vllm_config: Any, stats: SpecDecodeStats, cost: StepCost | None = None) -> Speculator:
    """A speculator of chains with the drafters of `additional_config["forerun"]`, compiled and warmed up.

    vLLM's sampler verifies its draft tokens as chosen ones.
    """
    config = speculation_config(vllm_config)
    model = vllm_config.model_config
    vocabulary = vocabulary_of(load_tokenizer(model.tokenizer)) if config.corpora else None
    with log_compilation():
        return Speculator(
            make_drafters(config, chain=True, vocabulary=vocabulary),
            cost or StepCost.default(),
            DraftFormat(model.get_vocab_size(), trees=False, q=False),
            default_drafters=config.default_names,
            adaptive=config.adaptive,
            counters=stats,
            logger=logger,
        )


def max_draft_tokens(vllm_config: Any) -> int:
    """The maximum draft length of a request in one step."""
    num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
    return min(num_speculative_tokens, speculation_config(vllm_config).max_draft)


def chain_verdict(output: Sequence[int], num_verified: int) -> Verdict:
    """The verdict on a chain of `num_verified` tokens whose step emitted these output tokens."""
    num_accepted = min(len(output) - 1, num_verified)
    return Verdict(tuple(range(num_accepted)), output[-1])


def record_goodput(stats: SpecDecodeStats, step: SpeculativeStep, goodput: Goodput | None) -> None:
    """Record the draft length and the goodput of a step for every drafter; ignores steps without requests."""
    if not step.requests:
        return
    by_source: Counter[str] = Counter()
    for draft, num_verified in zip(step.drafts, step.num_verified, strict=True):
        by_source.update(draft.source[:num_verified])
    num_tokens: Counter[str] = Counter()
    for source, num in by_source.items():
        num_tokens.update(dict.fromkeys(sources_of(source), num))
    for drafter in stats.drafters:
        length = num_tokens[drafter] / len(step.requests)
        stats.record_goodput(drafter, length, goodput if num_tokens[drafter] else None)
