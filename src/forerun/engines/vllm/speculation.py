"""The `Speculator` of a vLLM configuration, and the outcome of a step in vLLM's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.control.accounting import Goodput
from forerun.control.step_cost import StepCost
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.drafters.registry import make_drafters
from forerun.drafters.tree_merge import sources_of
from forerun.engines.chain_drafter import ChainDrafter
from forerun.engines.guarded_drafter import DrafterCounters, DraftFormat
from forerun.engines.speculative_step import SpeculativeStep
from forerun.engines.speculator import Speculator
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.startup_log import log_compilation
from forerun.engines.vllm.stats import SpecDecodeStats, logger
from forerun.engines.vllm.step_plan import PLACEHOLDER
from forerun.types import Draft, Drafter, Verdict


def make_stats(vllm_config: Any) -> SpecDecodeStats:
    """Statistics of the configured drafters."""
    num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
    return SpecDecodeStats(speculation_config(vllm_config).names, num_speculative_tokens)


def make_speculator(
    vllm_config: Any,
    stats: SpecDecodeStats,
    cost: StepCost | None = None,
    drafters: Mapping[str, Drafter] | None = None,
) -> Speculator:
    """A speculator with these drafters, by default those of `additional_config["forerun"]`.

    It drafts chains, or with `draft_trees` trees. Draft tokens are verified as chosen ones, unless the
    configuration says `sampled`.
    """
    config = speculation_config(vllm_config)
    trees = bool(config.draft_trees)
    with log_compilation():
        return Speculator(
            make_lookup_drafters(vllm_config, trees=trees) if drafters is None else drafters,
            cost or StepCost.default(),
            DraftFormat(vllm_config.model_config.get_vocab_size(), trees=trees, q=config.sampled),
            default_drafters=config.default_names,
            adaptive=config.adaptive,
            counters=stats,
            logger=logger,
        )


def make_lookup_drafters(vllm_config: Any, *, trees: bool = False) -> dict[str, Drafter]:
    """The drafters of a configuration, which draft chains or trees; corpora must have the model's vocabulary.

    They start without a static table, which may be built later; the scheduler hands it to them.
    """
    config = speculation_config(vllm_config)
    tokenizer = vllm_config.model_config.tokenizer
    vocabulary = vocabulary_of(load_tokenizer(tokenizer)) if config.corpora else None
    vocab_size = vllm_config.model_config.get_vocab_size()
    return make_drafters(config, chain=not trees, vocabulary=vocabulary, vocab_size=vocab_size)


def make_chain_drafter(vllm_config: Any, counters: DrafterCounters) -> ChainDrafter:
    """The drafter of the worker, for async scheduling; the scheduler looks up the same drafts."""
    with log_compilation():
        return ChainDrafter(
            make_lookup_drafters(vllm_config),
            vllm_config.model_config.get_vocab_size(),
            max_draft=max_draft_tokens(vllm_config),
            default_drafters=speculation_config(vllm_config).default_names,
            counters=counters,
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


def with_accepted(draft: Draft, output: Sequence[int]) -> Draft:
    """The draft with its accepted tokens: a draft model's are placeholders here, the V2 runner keeps them."""
    num_accepted = min(len(output) - 1, len(draft))
    if not num_accepted or draft.tokens[0] != PLACEHOLDER:
        return draft
    tokens = draft.tokens.copy()
    tokens[:num_accepted] = output[:num_accepted]
    return replace(draft, tokens=tokens)


def record_goodput(stats: SpecDecodeStats, step: SpeculativeStep, goodput: Goodput | None) -> None:
    """Record the draft length and the goodput of a step for every drafter; ignores steps without requests."""
    if not step.requests:
        return
    if not any(step.num_verified):
        for drafter in stats.drafters:
            stats.record_goodput(drafter, 0.0, None)
        return
    by_source: Counter[str] = Counter()
    for index, num_verified in enumerate(step.num_verified):
        by_source.update(step.verified(index).source if num_verified else ())
    num_tokens: Counter[str] = Counter()
    for source, num in by_source.items():
        num_tokens.update(dict.fromkeys(sources_of(source), num))
    for drafter in stats.drafters:
        length = num_tokens[drafter] / len(step.requests)
        stats.record_goodput(drafter, length, goodput if num_tokens[drafter] else None)
