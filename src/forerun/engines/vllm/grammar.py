"""Draft tokens that a grammar forces: where it allows a single continuation.

A grammar constrains characters and the model emits tokens, so forced text is tokenized by the tokenizer. The
model may tokenize it differently; then it rejects these draft tokens like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

Encode = Callable[[str], list[int]]

_BITS: Final = 32


def forced_tokens(grammar: Any, draft: Sequence[int], max_tokens: int, encode: Encode) -> list[int]:
    """At most `max_tokens` tokens that a grammar of vLLM forces after the tokens of `draft`.

    Supports xgrammar; other grammars force no tokens. Leaves the state of the grammar unchanged.
    """
    matcher: Any = getattr(grammar, "matcher", None)
    if max_tokens <= 0 or not hasattr(matcher, "find_jump_forward_string") or grammar.is_terminated():
        return []
    accepted: list[int] = []
    try:
        new = list(draft)
        while _advance(matcher, new, accepted):
            new = _next_forced(matcher, grammar.vocab_size, encode)[: len(draft) + max_tokens - len(accepted)]
            if not new:
                break
    finally:
        if accepted:
            matcher.rollback(len(accepted))
    return accepted[len(draft) :]


def _advance(matcher: Any, new: Sequence[int], accepted: list[int]) -> bool:
    """Append the tokens that the matcher accepts; returns whether it accepted all and has not terminated."""
    for token in new:
        if matcher.is_terminated() or not matcher.accept_token(token):
            return False
        accepted.append(token)
    return not matcher.is_terminated()


def _next_forced(matcher: Any, vocab_size: int, encode: Encode) -> list[int]:
    """The tokens of forced text, or else the only allowed token."""
    if text := matcher.find_jump_forward_string():
        return encode(text)
    mask = torch.zeros(1, -(-vocab_size // _BITS), dtype=torch.int32)
    matcher.fill_next_token_bitmask(mask, 0)
    nonzero = mask[0].nonzero()[:, 0].tolist()
    if len(nonzero) == 1:
        bits = int(mask[0, nonzero[0]]) & 0xFFFFFFFF
        if bits & (bits - 1) == 0:
            return [nonzero[0] * _BITS + bits.bit_length() - 1]
    return []
