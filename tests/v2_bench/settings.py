"""The sampling settings of the parity matrix, and the prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ASCII = list(range(4, 98))
"""The tokens of the printable ASCII characters: output of these alone is readable text."""
THINK, EOS = 2, 1

PROMPTS: list[list[int]] = [
    [5, 6, 7, 8] * 6,
    [9, 10, 11, 9, 10, 12, 9, 10],
    list(range(20, 60)) + list(range(20, 50)),
    [100, 101, 102, 103] * 3,
]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "size": {"enum": ["small"]}},
    "required": ["name", "size"],
}

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature 0.5": {"temperature": 0.5, "seed": 1},
    "temperature 1": {"temperature": 1.0, "seed": 2},
    "temperature 1.5": {"temperature": 1.5, "seed": 3},
    "top-k": {"temperature": 0.9, "top_k": 5, "seed": 4},
    "top-p": {"temperature": 0.9, "top_p": 0.8, "seed": 5},
    "top-k and top-p": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "seed": 6},
    "min-p": {"temperature": 1.0, "min_p": 0.1, "seed": 7},
    "presence penalty": {"temperature": 0.8, "presence_penalty": 0.9, "seed": 8},
    "frequency penalty": {"temperature": 0.8, "frequency_penalty": 0.6, "seed": 9},
    "repetition penalty": {"temperature": 0.8, "repetition_penalty": 1.3, "seed": 10},
    "greedy with penalties": {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    "penalties with top-k": {"temperature": 0.7, "top_k": 10, "presence_penalty": 0.5, "seed": 11},
    "everything": {
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.95,
        "min_p": 0.02,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {"50": 10.0},
        "seed": 12,
    },
    "logit bias": {"temperature": 0.9, "logit_bias": {"118": 12.0, "292": -100.0, "5": 10.0}, "seed": 13},
    "allowed tokens": {"temperature": 0.9, "allowed_token_ids": ASCII, "seed": 14},
    "end of sequence": {"temperature": 1.0, "logit_bias": {str(EOS): 14.0}, "ignore_eos": False, "seed": 15},
    "minimum tokens": {
        "temperature": 1.0,
        "logit_bias": {str(EOS): 14.0},
        "ignore_eos": False,
        "min_tokens": 15,
        "seed": 16,
    },
    "logprobs, greedy": {"temperature": 0, "logprobs": 3},
    "logprobs, sampled": {"temperature": 0.8, "top_p": 0.9, "logprobs": 2, "seed": 17},
    "logprobs of given tokens": {"temperature": 0.8, "logprob_token_ids": [5, 118, 250], "seed": 18},
    "logprobs of the prompt": {"temperature": 0.8, "prompt_logprobs": 2, "seed": 19},
    "regular expression": {
        "temperature": 0.9,
        "structured_outputs": {"regex": "([a-z]{2,5} ){4}end"},
        "seed": 20,
    },
    "JSON schema, greedy": {"temperature": 0, "structured_outputs": {"json": SCHEMA}},
    "choice": {"temperature": 1.0, "structured_outputs": {"choice": ["reading room", "red"]}, "seed": 21},
    "custom logits processor": {"temperature": 0.8, "extra_args": {"bias_after_token": 14.0}, "seed": 22},
    "thinking budget": {"temperature": 0.8, "thinking_token_budget": 9, "seed": 23},
    "prediction": {
        "temperature": 0.5,
        "extra_args": {"forerun_prediction": [5, 6, 7, 8] * 6 + [50, 51] * 4},
        "seed": 25,
    },
    "two outputs": {"temperature": 0.9, "n": 2, "seed": 24},
}
"""Settings by name; requests run to `max_tokens` unless they say otherwise."""

DERIVED = ("bad words", "stop token", "stop string", "stop token after minimum tokens")
"""Settings that `derived_settings` makes."""
ALL_NAMES = (*SETTINGS, *DERIVED)


def derived_settings(tokens: list[list[int]], texts: list[str]) -> dict[str, dict[str, Any]]:
    """Settings that forbid or stop at parts of these greedy outputs of ASCII characters."""
    ascii_only = {"temperature": 0, "allowed_token_ids": ASCII}
    stop_tokens = sorted({one[9] for one in tokens})
    return {
        "bad words": {**ascii_only, "bad_words": [text[3:5] for text in texts]},
        "stop token": {**ascii_only, "stop_token_ids": stop_tokens},
        "stop string": {**ascii_only, "stop": [text[11:14] for text in texts], "detokenize": True},
        "stop token after minimum tokens": {**ascii_only, "stop_token_ids": stop_tokens, "min_tokens": 18},
    }


def prompts_for(settings: Mapping[str, Any], prompts: list[list[int]]) -> list[dict[str, Any]]:
    """The prompts of a cell; a request with a thinking budget starts to think."""
    thinks = [THINK] if "thinking_token_budget" in settings else []
    return [{"prompt_token_ids": [*prompt, *thinks]} for prompt in prompts]


def sampling_params(settings: Mapping[str, Any], num_tokens: int) -> Any:
    """vLLM's parameters for settings."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    values = {"max_tokens": num_tokens, "ignore_eos": True, "detokenize": False, **settings}
    if "structured_outputs" in values:
        values |= {"structured_outputs": StructuredOutputsParams(**settings["structured_outputs"])}
        values |= {"ignore_eos": False}
    if "min_tokens" in values:
        values["min_tokens"] = min(values["min_tokens"], num_tokens)
    if "logit_bias" in values:
        values["logit_bias"] = {int(token): bias for token, bias in settings["logit_bias"].items()}
    return SamplingParams(**values)
