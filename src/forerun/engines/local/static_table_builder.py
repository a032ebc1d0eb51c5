"""Builds the static table of a model: one pass over the vocabulary, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from forerun.core.top_tokens import top_tokens
from forerun.drafters.static_table import StaticTable
from forerun.drafters.successors import NUM_SUCCESSORS
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.runner import Runner
from forerun.types import IntArray, TopTokens

ROWS_PER_PASS: Final = 128
"""Tokens of the vocabulary in one forward pass, as siblings behind the context."""


def build_static_table(
    target: Runner,
    context: Sequence[int],
    table: StaticTable,
    tokens: IntArray | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Compute the missing rows of a table, or those of `tokens`, behind a neutral context.

    Needs a free slot. `progress` is called with the number of rows computed after every pass; an exception
    that it raises ends the build, and the rows so far are kept.
    """
    missing = table.missing if tokens is None else tokens
    context = context[-(target.max_length - ROWS_PER_PASS) :]
    slot = target.allocate()
    try:
        target.forward([InputRows(slot, context, num_logits=0)])
        target.commit({slot: range(len(context))})
        for first in range(0, len(missing), ROWS_PER_PASS):
            rows = missing[first : first + ROWS_PER_PASS]
            siblings = np.full(len(rows), COMMITTED)
            logits = target.forward([InputRows(slot, rows, siblings, num_logits=len(rows))])
            target.truncate(slot, len(context))
            contexts = np.stack([np.full(len(rows), context[-1]), rows], axis=1).astype(np.int32)
            table.add(TopTokens(contexts, *top_tokens(logits, NUM_SUCCESSORS)))
            progress(first + len(rows))
    finally:
        target.free(slot)


def neutral_context(tokenizer: Any) -> list[int]:
    """The tokens with which the template of a chat begins an answer, without a question; at least one."""
    empty = tokenizer.encode("")
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": ""}]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        without = tokenizer.apply_chat_template(chat, tokenize=False)
        empty = tokenizer.encode(prompt.removeprefix(without), add_special_tokens=False) or empty
    return list(empty or [0])
