"""A transformers model as the reference of audits: what comes next after a prompt and some tokens.

Slow and plain on purpose: it is what others are held against. In float32 unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, DynamicCache

from forerun.models.loading import ends_of, load_model, load_tokenizer

_ROWS = 256
"""Tokens of one forward pass, all paths together: bounds the memory of the caches."""


class Reference:
    """A causal language model from a directory, in a precision of one's choice."""

    def __init__(self, model: str | Path, dtype: torch.dtype = torch.float32) -> None:
        self.name = str(model)
        self.dtype = dtype
        self._prompt: tuple[int, ...] = ()
        self._cache: Any = None
        self._first = torch.empty(0)
        self._model = load_model(model, dtype)
        self._config = AutoConfig.from_pretrained(model)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return int(self._config.get_text_config().vocab_size)

    @property
    def own_dtype(self) -> torch.dtype:
        """The precision the model is kept in, which servers use unless told otherwise."""
        return getattr(self._config, "dtype", None) or torch.float32

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return ends_of(self._model)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.name)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with whatever the tokenizer puts in front of it."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    @cached_property
    def _spellings(self) -> dict[str, list[int]]:
        spellings: dict[str, list[int]] = {}
        for token in range(self.vocab_size):
            spellings.setdefault(self._tokenizer.decode([token]), []).append(token)
        return spellings

    def spelled(self, text: str) -> list[int]:
        """The tokens that read like this, of which there can be several."""
        return self._spellings.get(text, [])

    @torch.inference_mode()
    def after(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [paths, vocabulary] of what comes after the prompt and each path, in float32 or better."""
        self._read(tuple(prompt))
        logits = torch.empty(len(paths), self.vocab_size, dtype=self._first.dtype)
        by_length: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            by_length.setdefault(len(path), []).append(row)
        for length, rows in by_length.items():
            if length == 0:
                logits[rows] = self._first
                continue
            step = max(1, _ROWS // length)
            for some in (rows[i : i + step] for i in range(0, len(rows), step)):
                logits[some] = self._forward(torch.tensor([list(paths[row]) for row in some]))
        return logits

    @torch.inference_mode()
    def along(self, tokens: Sequence[int], last: int) -> torch.Tensor:
        """Logits [last, vocabulary] of what comes after the longest prefixes of a text, itself the last."""
        out = self._model(torch.tensor([list(tokens)]), logits_to_keep=last, use_cache=False)
        return _at_least_float32(out.logits[0])

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What the model says when it always takes its likeliest token."""
        said: list[int] = []
        cache, tokens = DynamicCache(), torch.tensor([list(prompt)])
        while len(said) < num_tokens and not (said and said[-1] in self.ends):
            out = self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            said.append(int(out.logits[0, -1].argmax()))
            tokens = torch.tensor([[said[-1]]])
        return said

    def _read(self, prompt: tuple[int, ...]) -> None:
        """Have the prompt's cache at hand; the last one is kept."""
        if prompt != self._prompt or self._cache is None:
            cache = DynamicCache()
            out = self._model(
                torch.tensor([list(prompt)]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            self._prompt, self._cache = prompt, cache
            self._first = _at_least_float32(out.logits[0, -1])

    def _forward(self, paths: torch.Tensor) -> torch.Tensor:
        """Logits after each path, all of one length."""
        cache = DynamicCache()
        for number, layer in enumerate(self._cache.layers):
            many = (len(paths), -1, -1, -1)
            cache.update(layer.keys.expand(*many), layer.values.expand(*many), number)
        out = self._model(paths, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return _at_least_float32(out.logits[:, -1])


def _at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
