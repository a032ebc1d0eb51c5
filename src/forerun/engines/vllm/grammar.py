"""What a grammar forces: where it leaves one continuation, that is a free guess.

The grammar speaks of characters and the model of tokens, so forced text is guessed as the tokenizer would
cut it; the model may cut it differently, and then the guess falls like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

Encode = Callable[[str], list[int]]

_BITS: Final = 32


def forced(grammar: Any, ahead: Sequence[int], most: int, encode: Encode) -> list[int]:
    """At most so many tokens that a grammar of vLLM's forces once it has taken the tokens `ahead`.

    Only xgrammar's can be asked. The grammar is afterwards in the state it was in.
    """
    matcher: Any = getattr(grammar, "matcher", None)
    if most <= 0 or not hasattr(matcher, "find_jump_forward_string") or grammar.is_terminated():
        return []
    taken: list[int] = []
    try:
        new = list(ahead)
        while _take(matcher, new, taken):
            new = _next(matcher, grammar.vocab_size, encode)[: len(ahead) + most - len(taken)]
            if not new:
                break
    finally:
        if taken:
            matcher.rollback(len(taken))
    return taken[len(ahead) :]


def _take(matcher: Any, new: Sequence[int], taken: list[int]) -> bool:
    """Let the matcher take tokens as far as it does; whether it took them all, and can go on."""
    for token in new:
        if matcher.is_terminated() or not matcher.accept_token(token):
            return False
        taken.append(token)
    return not matcher.is_terminated()


def _next(matcher: Any, vocab_size: int, encode: Encode) -> list[int]:
    """Forced text as tokens, or the one token that is allowed."""
    if text := matcher.find_jump_forward_string():
        return encode(text)
    mask = torch.zeros(1, -(-vocab_size // _BITS), dtype=torch.int32)
    matcher.fill_next_token_bitmask(mask, 0)
    words = mask[0].nonzero()[:, 0].tolist()
    if len(words) == 1:
        word = int(mask[0, words[0]]) & 0xFFFFFFFF
        if word & (word - 1) == 0:
            return [words[0] * _BITS + word.bit_length() - 1]
    return []
