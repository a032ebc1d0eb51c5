"""Request fields of OpenAI-compatible servers that OpenAI's API lacks, and how each returns tokens.

Every sampling setting is sent, neutral ones included: servers have defaults of their own (top-k 40, min-p
0.05, the model's generation_config), and a comparison needs the same settings on both sides.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from forerun.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Dialect:
    """Request fields of one family of servers."""

    name: str
    repetition_penalty: str = "repetition_penalty"
    top_k_disabled: int = 0
    """The value of top_k that keeps all tokens."""

    accepts_token_ids: bool = True
    """Whether a prompt may be a list of token ids."""

    choices_per_request: int = 16
    """Completions per request (`n`)."""

    logprobs: int | None = None
    """The `logprobs` that a response needs to include its tokens; None if it always includes them."""

    needs_seed: bool = False
    """Whether the server repeats its random numbers after a restart, so that each request needs a seed."""

    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields that make the server return its tokens, or sample in the same order as others."""

    def settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """The sampling settings of a request body."""
        body: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or self.top_k_disabled,
            "min_p": sampling.min_p,
            self.repetition_penalty: sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        elif self.needs_seed:
            body["seed"] = secrets.randbelow(2**31)
        return body


VLLM = Dialect("vllm", extra={"return_token_ids": True, "return_tokens_as_token_ids": True})
SGLANG = Dialect("sglang", top_k_disabled=-1, extra={"return_token_ids": True})
LLAMA_SERVER = Dialect(
    "llama-server",
    repetition_penalty="repeat_penalty",
    choices_per_request=1,
    logprobs=1,
    extra={"samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"], "repeat_last_n": -1},
)
"""Samplers in vLLM's order (its own default applies temperature last). Its penalties count the prompt."""

LLAMA_CPP_PYTHON = Dialect(
    "llama-cpp-python",
    repetition_penalty="repeat_penalty",
    accepts_token_ids=False,
    choices_per_request=1,
    logprobs=1,
    needs_seed=True,
)
TENSORRT_LLM = Dialect("tensorrt-llm", extra={"detokenize": False})

DIALECTS = {each.name: each for each in (VLLM, SGLANG, LLAMA_SERVER, LLAMA_CPP_PYTHON, TENSORRT_LLM)}

_OWNERS = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "llamacpp": LLAMA_SERVER,
    "me": LLAMA_CPP_PYTHON,
    "tensorrt_llm": TENSORRT_LLM,
}


def detect_dialect(owner: str) -> Dialect:
    """The dialect of a server by the `owned_by` of its models; vLLM's if unknown."""
    return _OWNERS.get(owner, VLLM)
