"""Tiny models: tables of logits by the last two tokens, and a reference model with the target's table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from zoo.speculation import Logits

VOCAB = 16
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4, 1)


def table(seed: int, spread: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(VOCAB, VOCAB, VOCAB)) * spread


TARGET_TABLE = table(0, 1.5) + 2.0 * np.eye(VOCAB)  # repeated tokens are likely
DRAFT_TABLE = TARGET_TABLE + table(1, 1.0)


def logits_from(logits: np.ndarray) -> Logits:
    return lambda text: logits[text[-2], text[-1]]


TARGET, DRAFT = logits_from(TARGET_TABLE), logits_from(DRAFT_TABLE)


class TableModel:
    """The reference model of the zoo: the target's table."""

    name = "table"
    vocab_size = VOCAB
    ends: frozenset[int] = frozenset()
    dtype = torch.float32

    def after(self, prompt: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        rows = [TARGET((*prompt, *path)) for path in paths]
        return torch.from_numpy(np.array(rows)).float()

    def encode(self, text: str) -> list[int]:
        return [ord(x) % VOCAB for x in text]

    def tokens_for_text(self, text: str) -> list[int]:
        return []
