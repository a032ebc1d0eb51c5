"""Draft tokens on vLLM's V2 runner, which reads them from its request states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from vllm.utils.torch_utils import async_tensor_h2d


def write_draft_tokens(
    req_states: Any,
    drafts: Mapping[str, Sequence[int]],
    lengths: Mapping[str, int],
    pad_tokens: Mapping[str, int],
) -> None:
    """Write the draft tokens of these requests to their slots, with one asynchronous copy to the device.

    `lengths` are the draft rows that the scheduler planned. Every row needs a valid token, so a draft that is
    shorter is filled with the request's pad token.
    """
    if not drafts:
        return
    slots = np.array([req_states.req_id_to_index[name] for name in drafts], dtype=np.int64)
    width = max(lengths[name] for name in drafts)
    tokens = np.zeros((len(drafts), width), dtype=np.int64)
    for row, (name, draft) in enumerate(drafts.items()):
        tokens[row] = pad_tokens.get(name, 0)
        tokens[row, : len(draft)] = draft
    target = req_states.draft_tokens[:, :width]
    target.index_copy_(
        0, async_tensor_h2d(slots, device=target.device), async_tensor_h2d(tokens, device=target.device)
    )
