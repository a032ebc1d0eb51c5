"""Verification on vLLM's V2 runner: `match_target` over all rows of a step at once.

The noise with which V2 samples a token is a function of the request's seed, the position and the token. Every
row of a draft is therefore sampled exactly as non-speculative decoding samples that position, in one batched
pass, and a draft token is accepted while it equals the sample. Nothing here synchronizes with the host.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from forerun.engines.vllm.step_plan import PLACEHOLDER


class MatchTargetSampler(RejectionSampler):  # type: ignore[misc]
    """Takes the place of vLLM's rejection sampler; grammars, logprobs and chunking stay vLLM's."""

    def _verify(  # noqa: PLR0913, PLR0917
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,  # noqa: ARG002
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The processed logits of all rows, the output tokens of every request, and their number."""
        self._row_requests, self._requests = expanded_idx_mapping, idx_mapping_np
        processed = self.sampler.apply_sampling_params(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
        )
        states = self.sampler.sampling_states
        target = gumbel_sample(
            processed,
            expanded_idx_mapping,
            states.temperature.gpu,
            states.seeds.gpu,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self.sampler.use_fp64_gumbel,
        )
        return processed, *match_rows(target, verify_draft_sampled, cu_num_logits, self.num_speculative_steps)

    def _get_logprobs_tensors(
        self,
        sampled: torch.Tensor,
        num_sampled: torch.Tensor,
        logits: torch.Tensor,
        cu_num_logits: torch.Tensor,
        cu_num_logits_np: Any,
        max_num_logprobs: int,
    ) -> Any:
        """Logprobs as vLLM returns them without speculation: those of `logprob_token_ids` as well."""
        states = self.sampler.logprob_token_ids_state
        max_token_ids = states.max_num_token_ids(self._requests)
        if not max_token_ids:
            return super()._get_logprobs_tensors(
                sampled, num_sampled, logits, cu_num_logits, cu_num_logits_np, max_num_logprobs
            )
        return compute_topk_scores(
            logits,
            max(max_num_logprobs, 0),
            output_by_row(sampled, cu_num_logits, logits.shape[0]),
            cu_num_logits_np.tolist(),
            logprob_token_ids_state=states,
            expanded_idx_mapping=self._row_requests,
            max_per_req_token_ids=max_token_ids,
            logits_mode=self.sampler.logprobs_mode in ("raw_logits", "processed_logits"),
        )


def match_rows(
    target: torch.Tensor, draft: torch.Tensor, starts: torch.Tensor, max_draft_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept draft tokens while they equal the target's tokens; the next target token is the last output.

    `target[row]` is the target's token after row `row`, `draft[row]` the input token of that row, and the
    rows of request `i` are `starts[i]` to `starts[i + 1]`. Returns output tokens, padded with `PLACEHOLDER`
    to `max_draft_tokens + 1` columns, and their number per request.
    """
    first, end = starts[:-1].long()[:, None], starts[1:].long()[:, None]
    last_row = target.shape[0] - 1
    depth = torch.arange(max_draft_tokens + 1, device=target.device)
    rows = (first + depth).clamp(max=last_row)
    tokens = target[rows]
    matches = (tokens == draft[(rows + 1).clamp(max=last_row)]) & (first + depth + 1 < end)
    num_accepted = matches.long().cumprod(dim=1).sum(dim=1, keepdim=True)
    output = torch.where(depth <= num_accepted, tokens, PLACEHOLDER)
    return output, (num_accepted[:, 0] + 1).int()


def output_by_row(output: torch.Tensor, starts: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The output token of every row, 0 for rejected rows: the inverse of the layout of `match_rows`."""
    row = torch.arange(num_rows, device=output.device)
    owner = torch.searchsorted(starts[1:].long().contiguous(), row, right=True)
    depth = row - starts.long()[owner]
    return output[owner, depth].clamp(min=0)
