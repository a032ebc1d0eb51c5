"""Exact probabilities of three tokens after a prompt, and the chi-square test against them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from scipy.stats import chisquare


def exact_probabilities(model: Path, prompt: list[int]) -> np.ndarray:
    """The probability of every three tokens after the prompt, at temperature 1, in float64."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    vocab = target.config.vocab_size
    pairs = [[a, b] for a in range(vocab) for b in range(vocab)]
    with torch.no_grad():
        logits = target(torch.tensor([[*prompt, *pair] for pair in pairs])).logits[:, -3:]
    p = logits.softmax(-1).numpy().reshape(vocab, vocab, 3, vocab)
    first, second, third = p[0, 0, 0], p[:, 0, 1], p[:, :, 2]
    result: np.ndarray = first[:, None, None] * second[:, :, None] * third
    return result


def p_value(tokens: list[list[int]], exact: np.ndarray) -> float:
    """The p-value of the chi-square test; triples expected fewer than five times are pooled."""
    seen = Counter(map(tuple, tokens))
    observed = np.array([seen[triple] for triple in np.ndindex(exact.shape)], dtype=float)
    expected = len(tokens) * exact.ravel() / exact.sum()
    rare = expected < 5
    seen_in, expected_in = (np.append(each[~rare], each[rare].sum()) for each in (observed, expected))
    return float(chisquare(seen_in, expected_in, sum_check=False).pvalue)
