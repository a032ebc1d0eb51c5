"""The checks of `forerun audit suite`, in order, each with the public reports that it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forerun.audit.suite.distribution_check import distribution
from forerun.audit.suite.finding import Finding
from forerun.audit.suite.format_checks import json_schema, stop_strings, tool_calls
from forerun.audit.suite.output_checks import (
    aborts,
    cache_replay,
    concurrency,
    context_limit,
    greedy,
    long_drafts,
    max_tokens,
    prefix_cache,
    shared_prefix,
)
from forerun.audit.suite.session import Session
from forerun.audit.suite.settings_checks import (
    logit_bias,
    logprobs,
    min_p,
    penalties,
    seeds,
    seeds_as_without,
    truncation,
)


@dataclass(frozen=True, slots=True)
class SuiteCheck:
    """A check: its name, what holds where it passes, and public reports of servers where it did not hold.

    A report is written `owner/repository#number`.
    """

    name: str
    claim: str
    reports: tuple[str, ...]
    run: Callable[[Session], Finding]


CHECKS: Final = (
    SuiteCheck(
        "greedy",
        "greedy output equals that without speculation",
        ("vllm-project/vllm#41758", "ml-explore/mlx-lm#1423"),
        greedy,
    ),
    SuiteCheck(
        "long-drafts",
        "long output of repeated text equals that without speculation",
        ("vllm-project/vllm#39273", "vllm-project/vllm#8783"),
        long_drafts,
    ),
    SuiteCheck(
        "cache-replay",
        "a prompt, another, and the first again: the same output as the first time",
        ("vllm-project/vllm#43559",),
        cache_replay,
    ),
    SuiteCheck(
        "prefix-cache",
        "the same prompt again and again gives the same output",
        ("vllm-project/vllm#7845", "vllm-project/vllm#43559"),
        prefix_cache,
    ),
    SuiteCheck(
        "shared-prefix",
        "output after a cached prefix equals that without speculation",
        ("vllm-project/vllm#43559",),
        shared_prefix,
    ),
    SuiteCheck(
        "concurrency",
        "output does not depend on the number of requests in flight",
        ("vllm-project/vllm#46088", "vllm-project/vllm#9441"),
        concurrency,
    ),
    SuiteCheck(
        "aborts",
        "aborted requests change no other output",
        ("vllm-project/vllm#39012", "sgl-project/sglang#35049"),
        aborts,
    ),
    SuiteCheck(
        "max-tokens",
        "output has exactly the maximum number of tokens",
        ("NVIDIA/TensorRT-LLM#16826",),
        max_tokens,
    ),
    SuiteCheck(
        "context-limit",
        "output up to the end of the context equals that without speculation",
        ("NVIDIA/TensorRT-LLM#16826", "vllm-project/vllm#57941"),
        context_limit,
    ),
    SuiteCheck(
        "stop-strings",
        "output ends at a stop string inside a run of accepted draft tokens",
        ("vllm-project/vllm#47616", "snowflakedb/ArcticInference#161"),
        stop_strings,
    ),
    SuiteCheck(
        "json-schema",
        "structured output follows its schema",
        ("vllm-project/vllm#15554", "vllm-project/vllm#36138"),
        json_schema,
    ),
    SuiteCheck(
        "tool-calls",
        "tool calls follow their schema, streamed and not",
        ("vllm-project/vllm#41967", "vllm-project/vllm#44006"),
        tool_calls,
    ),
    SuiteCheck(
        "truncation",
        "top-k and top-p hold at every position",
        ("vllm-project/vllm#55005",),
        truncation,
    ),
    SuiteCheck("min-p", "min-p holds at every position", ("vllm-project/vllm#42744",), min_p),
    SuiteCheck("logit-bias", "logit biases hold at every position", ("vllm-project/vllm#38202",), logit_bias),
    SuiteCheck("penalties", "penalties count accepted draft tokens", ("vllm-project/vllm#18902",), penalties),
    SuiteCheck(
        "logprobs",
        "log-probabilities equal those without speculation",
        ("vllm-project/vllm#34497", "vllm-project/vllm#17876"),
        logprobs,
    ),
    SuiteCheck(
        "seeds",
        "the same seed gives the same output",
        ("vllm-project/vllm#6038", "vllm-project/vllm#9441"),
        seeds,
    ),
    SuiteCheck(
        "seeds-as-without",
        "a seed gives the output of the server without speculation",
        ("vllm-project/vllm#22987",),
        seeds_as_without,
    ),
    SuiteCheck(
        "distribution",
        "sampled tokens follow the distribution of decoding without speculation",
        ("vllm-project/vllm#55005", "NVIDIA/TensorRT-LLM#19487"),
        distribution,
    ),
)
"""Servers that speculate are known to have failed each of them."""
