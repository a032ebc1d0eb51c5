"""The reference of audits: next-token logits from a transformers model, by default in float32.

Simple rather than fast, because audits compare servers with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, DynamicCache

from forerun.models.loading import get_eos_token_ids, load_model, load_tokenizer

_MAX_ROWS = 256
"""Maximum tokens of a forward pass over all paths; bounds the memory of the caches."""


class Reference:
    """A causal language model from a directory, in a given dtype."""

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
        """The number of tokens."""
        return int(self._config.get_text_config().vocab_size)

    @property
    def own_dtype(self) -> torch.dtype:
        """The dtype of the checkpoint, which servers use by default."""
        return getattr(self._config, "dtype", None) or torch.float32

    @cached_property
    def ends(self) -> frozenset[int]:
        """The end-of-sequence tokens."""
        return get_eos_token_ids(self._model)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.name)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer adds."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    @cached_property
    def _tokens_by_text(self) -> dict[str, list[int]]:
        tokens_by_text: dict[str, list[int]] = {}
        for token in range(self.vocab_size):
            tokens_by_text.setdefault(self._tokenizer.decode([token]), []).append(token)
        return tokens_by_text

    def tokens_for_text(self, text: str) -> list[int]:
        """The tokens that decode to this text; there can be several."""
        return self._tokens_by_text.get(text, [])

    @torch.inference_mode()
    def after(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Next-token logits [paths, vocabulary] after the prompt and each path, in float32 or float64."""
        self._prefill(tuple(prompt))
        logits = torch.empty(len(paths), self.vocab_size, dtype=self._first.dtype)
        by_length: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            by_length.setdefault(len(path), []).append(row)
        for length, rows in by_length.items():
            if length == 0:
                logits[rows] = self._first
                continue
            step = max(1, _MAX_ROWS // length)
            for some in (rows[i : i + step] for i in range(0, len(rows), step)):
                logits[some] = self._forward(torch.tensor([list(paths[row]) for row in some]))
        return logits

    @torch.inference_mode()
    def prefix_logits(self, tokens: Sequence[int], last: int) -> torch.Tensor:
        """Next-token logits [last, vocabulary] after the `last` longest prefixes, including all tokens."""
        out = self._model(torch.tensor([list(tokens)]), logits_to_keep=last, use_cache=False)
        return _at_least_float32(out.logits[0])

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Greedy output of at most `num_tokens` tokens, up to an end-of-sequence token."""
        output: list[int] = []
        cache, tokens = DynamicCache(), torch.tensor([list(prompt)])
        while len(output) < num_tokens and not (output and output[-1] in self.ends):
            out = self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            output.append(int(out.logits[0, -1].argmax()))
            tokens = torch.tensor([[output[-1]]])
        return output

    def _prefill(self, prompt: tuple[int, ...]) -> None:
        """Compute the cache of a prompt; only the last cache is retained."""
        if prompt != self._prompt or self._cache is None:
            cache = DynamicCache()
            out = self._model(
                torch.tensor([list(prompt)]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            self._prompt, self._cache = prompt, cache
            self._first = _at_least_float32(out.logits[0, -1])

    def _forward(self, paths: torch.Tensor) -> torch.Tensor:
        """Next-token logits after each path; all paths have the same length."""
        cache = DynamicCache()
        for number, layer in enumerate(self._cache.layers):
            shape = (len(paths), -1, -1, -1)
            cache.update(layer.keys.expand(*shape), layer.values.expand(*shape), number)
        out = self._model(paths, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return _at_least_float32(out.logits[:, -1])


def _at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
