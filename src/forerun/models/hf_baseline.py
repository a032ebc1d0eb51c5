"""Decoding by transformers itself, as a baseline: non-speculative, assisted, or with prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch
from transformers import GenerationConfig, set_seed

from forerun.errors import ConfigurationError
from forerun.models.loading import get_eos_token_ids, load_model
from forerun.types import SamplingParams

DecodingMethod = Literal["baseline", "assisted", "lookup"]

NUM_LOOKUP_TOKENS: Final = 10
"""Draft tokens of prompt lookup, as in transformers' documentation."""


@dataclass(slots=True)
class ForwardPasses:
    """Rows of each forward pass for one output; the first pass is the prefill."""

    rows: list[int] = field(default_factory=list)

    def count(self, _: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Record a forward pass; a pre-hook of the model."""
        self.rows.append((args[0] if args else given["input_ids"]).shape[1])


class HFBaseline:
    """A model with the generate loop of transformers."""

    def __init__(
        self,
        model: str | Path,
        dtype: torch.dtype,
        method: DecodingMethod = "baseline",
        draft: str | Path | None = None,
    ) -> None:
        if (method == "assisted") != (draft is not None):
            raise ConfigurationError(
                f"got method {method!r} with draft model {draft}; a draft model is needed for `assisted` only"
            )
        self.model = load_model(model, dtype)
        self.eos_token_ids = sorted(get_eos_token_ids(self.model))
        self._lookup: dict[str, Any] = (
            {"prompt_lookup_num_tokens": NUM_LOOKUP_TOKENS} if method == "lookup" else {}
        )
        self._draft = {} if draft is None else {"assistant_model": load_model(draft, dtype)}

    def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        put: Callable[[list[int]], None],
    ) -> ForwardPasses:
        """Generate an output; `put` gets its tokens as they are committed."""
        sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            max_new_tokens=max_tokens,
            pad_token_id=0,
            eos_token_id=self.eos_token_ids or None,
            repetition_penalty=1.0,
            **({"do_sample": False} if sampling.greedy else sampled),
            **self._lookup,
        )
        ids = torch.tensor([list(prompt)])
        passes = ForwardPasses()
        if sampling.seed is not None:
            set_seed(sampling.seed)
        hook = self.model.register_forward_pre_hook(passes.count, with_kwargs=True)
        try:
            with torch.inference_mode():
                self.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    generation_config=config,
                    streamer=_Streamer(put),
                    **self._draft,
                )
        finally:
            hook.remove()
        return passes


class _Streamer:
    """The streamer protocol of transformers; drops the prompt, which comes first."""

    def __init__(self, put: Callable[[list[int]], None]) -> None:
        self._put = put
        self._begun = False

    def put(self, tokens: torch.Tensor) -> None:
        """Pass new tokens on."""
        if self._begun:
            self._put(tokens.flatten().tolist())
        self._begun = True

    def end(self) -> None:
        """Required by the protocol; nothing to do."""
