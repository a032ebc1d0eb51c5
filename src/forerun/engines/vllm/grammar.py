"""Draft tokens that a grammar forces: where it allows a single continuation.

A grammar constrains characters and the model emits tokens, so forced text is tokenized by the tokenizer. The
model may tokenize it differently; then it rejects these draft tokens like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from forerun.control.candidates import drafter_survival
from forerun.drafters.tree_merge import best_path, merge
from forerun.engines.proposal_merger import with_estimates
from forerun.engines.tree_paths import paths_of
from forerun.types import Draft

GRAMMAR: Final = "grammar"
"""The drafter that proposes forced tokens."""

FORCED_PROBABILITY: Final = 0.98
"""Acceptance probability of a token that a grammar forces: the same text may be tokenized differently."""

Encode = Callable[[str], list[int]]

_BITS: Final = 32


def constrain(draft: Draft, request: Any, manager: Any, *, max_tokens: int) -> Draft:
    """A chain as far as a request's grammar allows it, extended by forced tokens to at most `max_tokens`."""
    draft = draft.truncate(len(manager.validate_tokens(request, draft.tokens.tolist())))
    grammar = request.structured_output_request.grammar
    if len(draft) >= max_tokens or grammar is None or not _is_constrained(request, manager):
        return draft
    encode = partial(manager.tokenizer.encode, add_special_tokens=False)
    return _extend(draft, forced_tokens(grammar, draft.tokens.tolist(), max_tokens - len(draft), encode))


def constrain_tree(draft: Draft, request: Any, manager: Any, *, max_tokens: int) -> Draft:
    """A tree as far as a request's grammar allows each of its paths.

    Its best path is extended by forced tokens, as `constrain` does, while the tree has at most `max_tokens`.
    """
    allowed = np.zeros(len(draft), dtype=bool)
    for path in paths_of(draft):
        allowed[path[: len(manager.validate_tokens(request, draft.tokens[path].tolist()))]] = True
    tree = with_estimates(draft.select(allowed))
    if not len(tree):
        return constrain(tree, request, manager, max_tokens=max_tokens)
    best = best_path(tree, drafter_survival(tree).astype(np.float64))
    chain = constrain(best, request, manager, max_tokens=len(best) + max(max_tokens - len(tree), 0))
    return merge([tree, chain]).truncate(max(max_tokens, len(tree)))


def _is_constrained(request: Any, manager: Any) -> bool:
    """Whether the request's grammar applies already: it may start after the reasoning."""
    ended = request.structured_output_request.reasoning_ended
    return bool(manager.reasoner_cls is None or manager.enable_in_reasoning or ended)


def _extend(draft: Draft, forced: Sequence[int]) -> Draft:
    """A chain with forced tokens at its end."""
    before = drafter_survival(draft)
    last = float(before[-1]) if len(draft) else 1.0
    more = last * np.cumprod(np.full(len(forced), FORCED_PROBABILITY))
    chain = Draft.chain([*draft.tokens.tolist(), *forced])
    return replace(
        chain,
        source=(*draft.source, *(GRAMMAR for _ in forced)),
        survival=np.concatenate([before, more]).astype(np.float32),
    )


def forced_tokens(grammar: Any, draft: Sequence[int], max_tokens: int, encode: Encode) -> list[int]:
    """At most `max_tokens` tokens that a grammar of vLLM forces after the tokens of `draft`.

    Supports xgrammar; other grammars force no tokens. Leaves the state of the grammar unchanged.
    """
    if max_tokens <= 0 or not isinstance(grammar, XgrammarGrammar) or grammar.is_terminated():
        return []
    matcher: Any = grammar.matcher
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
