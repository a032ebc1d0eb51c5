"""What OpenAI-compatible servers call the settings that OpenAI does not have, and how they tell tokens.

Every setting is sent, the neutral ones too: servers have defaults of their own (a top-k of 40, a min-p of
0.05, what a model's generation_config says), and a law is only compared if it is the same on both sides.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from forerun.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of servers is spoken to."""

    name: str
    repetition_penalty: str = "repetition_penalty"
    all_tokens: int = 0
    """The top-k that keeps all tokens."""

    takes_ids: bool = True
    """Whether a prompt may be a list of token ids."""

    choices: int = 16
    """How many answers to ask for in one request."""

    logprobs: int | None = None
    """How many log-probabilities it takes for an answer to show its tokens; None if it shows them anyway."""

    needs_seed: bool = False
    """Whether requests without a seed repeat those of the last start, so that each must have its own."""

    extra: dict[str, Any] = field(default_factory=dict)
    """What else makes it show its tokens, or sample as others do."""

    def settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """The sampling settings of a request's body."""
        body: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or self.all_tokens,
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
SGLANG = Dialect("sglang", all_tokens=-1, extra={"return_token_ids": True})
LLAMA_SERVER = Dialect(
    "llama-server",
    repetition_penalty="repeat_penalty",
    choices=1,
    logprobs=1,
    extra={"samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"], "repeat_last_n": -1},
)
"""In vLLM's order, where its own puts temperature last; its penalties count the prompt, vLLM's do not."""

LLAMA_CPP_PYTHON = Dialect(
    "llama-cpp-python",
    repetition_penalty="repeat_penalty",
    takes_ids=False,
    choices=1,
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


def spoken_by(owner: str) -> Dialect:
    """The dialect of a server by what it calls the owner of its models; vLLM's, if we do not know it."""
    return _OWNERS.get(owner, VLLM)
