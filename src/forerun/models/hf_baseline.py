"""transformers' own ways to decode, for whoever wants to compare: plain, assisted, and by prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch
from transformers import GenerationConfig, set_seed

from forerun.errors import ConfigurationError
from forerun.models.loading import ends_of, load_model
from forerun.types import SamplingParams

How = Literal["plain", "assisted", "lookup"]

LOOKUP: Final = 10
"""Tokens that a prompt lookup guesses, as in transformers' documentation."""


@dataclass(slots=True)
class ForwardPasses:
    """How many rows each pass of the model had for an answer; the first reads the prompt."""

    rows: list[int] = field(default_factory=list)

    def count(self, _: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Called before every pass."""
        self.rows.append((args[0] if args else given["input_ids"]).shape[1])


class HFBaseline:
    """A model decoded by transformers."""

    def __init__(
        self, model: str | Path, dtype: torch.dtype, how: How = "plain", draft: str | Path | None = None
    ) -> None:
        if (how == "assisted") != (draft is not None):
            raise ConfigurationError("assisted decoding, and no other, needs a draft model")
        self.model = load_model(model, dtype)
        self.ends = sorted(ends_of(self.model))
        self._how: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP} if how == "lookup" else {}
        self._draft = {} if draft is None else {"assistant_model": load_model(draft, dtype)}

    def say(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        put: Callable[[list[int]], None],
    ) -> ForwardPasses:
        """Answer a prompt; tokens are put out as they come."""
        drawn = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            max_new_tokens=max_tokens,
            pad_token_id=0,
            eos_token_id=self.ends or None,
            repetition_penalty=1.0,
            **({"do_sample": False} if sampling.greedy else drawn),
            **self._how,
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
    """What transformers gives tokens to: the prompt first, which nobody asked for."""

    def __init__(self, put: Callable[[list[int]], None]) -> None:
        self._put = put
        self._begun = False

    def put(self, tokens: torch.Tensor) -> None:
        """Some tokens."""
        if self._begun:
            self._put(tokens.flatten().tolist())
        self._begun = True

    def end(self) -> None:
        """No more."""
