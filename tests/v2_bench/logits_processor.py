"""A custom logits processor of vLLM's V2 runner that depends on the position and on the last token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

if TYPE_CHECKING:
    import torch

ARGUMENT = "bias_after_token"
"""The request's extra argument: the bias of one token, which the last token and the position choose."""


class BiasAfterToken(LogitsProcessor):  # type: ignore[misc]
    """Adds the request's bias to the logit of token `(last token + position) mod vocabulary`."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self.bias = np.zeros(req_states.max_num_reqs, dtype=np.float32)
        self.device = req_states.device

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Remember the bias of the request."""
        self.bias[req_idx] = (sampling_params.extra_args or {}).get(ARGUMENT, 0.0)
        return bool(self.bias[req_idx])

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Change one logit of every row."""
        import torch

        bias = torch.from_numpy(self.bias).to(self.device)[ctx.expanded_idx_mapping]
        chosen = (ctx.input_ids.long() + ctx.pos.long()) % logits.shape[1]
        logits.scatter_add_(1, chosen[:, None], bias[:, None])
        return logits
