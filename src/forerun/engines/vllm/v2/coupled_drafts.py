"""Draft models that draw with the target's noise, so that `match_target` accepts what they draw.

vLLM's speculators draw with salted noise, for a probability-ratio test. Here a draft token is the argmax of
the draft's logits plus the very noise with which the target samples that position (Gumbel coupling), both
after the request's sampling settings. Draft and target then differ only where their distributions do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from forerun.engines.vllm.v2.draft_timer import DraftTimer


class CoupledDrafts:
    """Wraps the sampling of a speculator of vLLM.

    The settings are applied where the speculator runs eagerly. Inside a CUDA graph only the temperature is:
    the settings in use are known on the host alone. They change how many draft tokens are accepted, never the
    output.
    """

    def __init__(self, speculator: Any, sampler: Any, timer: DraftTimer) -> None:
        self.speculator = speculator
        self.sampler = sampler
        self.timer = timer
        self._propose: Callable[..., torch.Tensor] = speculator.propose
        self._sample_draft: Callable[..., torch.Tensor] = speculator.sample_draft
        self._batch: Any = None
        self._counted: list[tuple[torch.Tensor, torch.Tensor]] = []
        speculator.propose = self.propose
        speculator.sample_draft = self.sample_draft

    def propose(
        self,
        input_batch: Any,
        *args: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Draft as vLLM does, at most `num_speculative_tokens` tokens per request."""
        self._batch = None if dummy_run else input_batch
        max_tokens = self.speculator.num_speculative_steps
        if num_speculative_tokens and isinstance(self.speculator, StandaloneARSpeculator):
            self.speculator.num_speculative_steps = num_speculative_tokens  # it ignores the argument
        try:
            with self.timer.time(num_speculative_tokens or max_tokens):
                drafts = self._propose(
                    input_batch,
                    *args,
                    dummy_run=dummy_run,
                    num_speculative_tokens=num_speculative_tokens,
                    **kwargs,
                )
        finally:
            self.speculator.num_speculative_steps = max_tokens
            self._uncount()
            self._batch = None
        return (
            self.speculator.draft_tokens[: input_batch.num_reqs] if drafts.shape[1] < max_tokens else drafts
        )

    def sample_draft(
        self,
        hidden_states: torch.Tensor,
        sample_src_positions: torch.Tensor,
        idx_mapping: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        draft_step: torch.Tensor,
        draft_logits: torch.Tensor | None,
        spec_step_idx: int = 0,
    ) -> torch.Tensor:
        """One draft token per request, drawn with the target's noise of its position."""
        if self.speculator.use_local_argmax_reduction:
            return self._sample_draft(
                hidden_states,
                sample_src_positions,
                idx_mapping,
                temperature,
                seeds,
                draft_step,
                draft_logits,
                spec_step_idx,
            )
        logits: torch.Tensor = self.speculator.compute_draft_logits(hidden_states, spec_step_idx)
        uses_settings = self._batch is not None and len(idx_mapping) == self._batch.num_reqs
        if uses_settings:
            logits = self._apply_settings(logits, sample_src_positions, idx_mapping)
        tokens: torch.Tensor = gumbel_sample(
            logits,
            idx_mapping,
            temperature,
            seeds,
            sample_src_positions,
            apply_temperature=not uses_settings,
            is_drafting=False,
            use_fp64=self.speculator.use_fp64_gumbel,
        )
        if uses_settings:
            self._count(idx_mapping, tokens)
        return tokens

    def _apply_settings(
        self, logits: torch.Tensor, positions: torch.Tensor, idx_mapping: torch.Tensor
    ) -> torch.Tensor:
        """The draft's logits after the sampling settings of their requests."""
        first_rows = torch.zeros_like(idx_mapping, dtype=torch.int32)
        processed: torch.Tensor = self.sampler.apply_sampling_params(
            logits,
            idx_mapping,
            idx_mapping,
            self._batch.idx_mapping_np,
            positions,
            first_rows,
            first_rows,
            self._batch.seq_lens_cpu_upper_bound.numpy(),
        )
        return processed

    def _count(self, idx_mapping: torch.Tensor, tokens: torch.Tensor) -> None:
        """Count draft tokens for the penalties of the next ones, until the draft is complete."""
        penalties = self.sampler.penalties_state
        if penalties.use_penalty[self._batch.idx_mapping_np].any():
            self._add_counts(idx_mapping, tokens, 1)
            self._counted.append((idx_mapping.clone(), tokens.clone()))

    def _uncount(self) -> None:
        for idx_mapping, tokens in self._counted:
            self._add_counts(idx_mapping, tokens, -1)
        self._counted.clear()

    def _add_counts(self, idx_mapping: torch.Tensor, tokens: torch.Tensor, amount: int) -> None:
        counts = self.sampler.penalties_state.output_bin_counts
        amounts = torch.full_like(tokens, amount, dtype=counts.dtype)
        counts.index_put_((idx_mapping, tokens), amounts, accumulate=True)
