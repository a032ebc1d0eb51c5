"""The target's likeliest next tokens at the rows of a step, for drafters that learn from logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np

from forerun.core.tensors import torch
from forerun.core.top_tokens import top_tokens
from forerun.drafters.successors import NUM_SUCCESSORS
from forerun.types import Draft, Float32Array, IntArray, Tokens, TopTokens
from forerun.types.top_tokens import Int32Array

TopRows: TypeAlias = tuple[Int32Array, Float32Array]
"""The likeliest next tokens at the rows of a request, and their probabilities: [rows, number]."""


def top_tokens_of(
    requests: Collection[int], texts: Sequence[Sequence[int]], drafts: Sequence[Draft], logits: torch.Tensor
) -> dict[int, TopTokens]:
    """The likeliest next tokens of these requests, by index.

    `texts` are the tokens of every request before the step, `drafts` the verified drafts, and `logits` has a
    row for the last token of each text and one for each of its draft tokens.
    """
    if not requests:
        return {}
    sizes = [len(draft) + 1 for draft in drafts]
    ends = np.cumsum(sizes)
    chosen = sorted(requests)
    rows = np.concatenate([np.arange(ends[at] - sizes[at], ends[at]) for at in chosen])
    tokens, probs = top_tokens(logits, NUM_SUCCESSORS, rows)
    splits = np.cumsum([sizes[at] for at in chosen])[:-1]
    return {
        at: TopTokens(row_contexts(texts[at], drafts[at]), own_tokens, own_probs)
        for at, own_tokens, own_probs in zip(
            chosen, np.split(tokens, splits), np.split(probs, splits), strict=True
        )
    }


def row_contexts(text: Tokens, draft: Draft) -> Int32Array:
    """The last two tokens at the rows that verify a draft: the row of the last token, then one per node.

    -1 stands for a token before the text.
    """
    contexts = np.empty((1 + len(draft), 2), dtype=np.int32)
    contexts[0] = text[-2] if len(text) > 1 else -1, text[-1]
    contexts[1:, 1] = draft.tokens
    contexts[1:, 0] = contexts[1 + draft.parents, 1]
    return contexts


def chain_top_tokens(text: Tokens, chain: Sequence[int], rows: TopRows) -> TopTokens:
    """The rows that verified a chain after a text; rows beyond the chain are those of padding."""
    num = 1 + len(chain)
    line = np.array([text[-2] if len(text) > 1 else -1, text[-1], *chain], dtype=np.int32)
    contexts = np.empty((num, 2), dtype=np.int32)
    contexts[:, 0], contexts[:, 1] = line[:-1], line[1:]
    tokens, probs = rows
    return TopTokens(contexts, tokens[:num], probs[:num])


def learning_order(top_tokens: TopTokens, accepted: Sequence[int]) -> TopTokens:
    """The rows of a draft in the order in which drafters learn them."""
    num = len(top_tokens)
    if [*accepted[: num - 1]] == [*range(num - 1)]:  # nothing was rejected
        return top_tokens
    return top_tokens.select(rejected_first(accepted, num))


def rejected_first(accepted: Sequence[int], num_rows: int) -> IntArray:
    """The rows of a request: those of rejected draft tokens, then those whose tokens are in the output.

    Deeper rows of a draft come before those above them, so that the likelier ones of a context are kept.
    """
    output = [0, *(node + 1 for node in accepted if node + 1 < num_rows)]
    if len(output) == 1:
        return np.arange(num_rows - 1, -1, -1)
    emitted = set(output)
    rejected = [row for row in range(num_rows - 1, 0, -1) if row not in emitted]
    return np.array([*rejected, *output], dtype=np.int64)
