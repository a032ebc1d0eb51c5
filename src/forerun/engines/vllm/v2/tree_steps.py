"""Steps of vLLM's V2 model runner that verify draft trees as paths.

Every side path is one more sequence of the batch, a *segment* behind the requests' own: vLLM prepares it like
them, because a batch maps its sequences to request states by index, and an index may occur more than once. So
sampling settings, seeds, penalties, positions and the tokens before the draft are those of the request. Here
a segment gets its draft tokens and its scratch blocks. After verification, the requests' own segments alone
are left, with the output of their winning paths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.utils import get_uniform_decode_token_count

from forerun.engines.vllm.scratch_pool import ScratchPool
from forerun.engines.vllm.scratch_reservation import make_scratch_pool
from forerun.engines.vllm.stats import logger
from forerun.engines.vllm.step_plan import SidePath, read_plan, with_side_paths
from forerun.engines.vllm.v2 import path_winner, scratch_blocks
from forerun.types import IntArray


def install_trees(runner: Any) -> None:
    """Install the verification of draft trees in a runner with forerun's steps, whose KV cache exists."""
    pool = make_scratch_pool(runner.vllm_config, runner.kv_cache_config)
    steps = TreeSteps(runner, pool)
    logger.info(
        "Draft trees: %d side paths per step in %d scratch blocks of the KV cache (%.1f MiB per rank)",
        pool.num_paths,
        pool.num_blocks,
        pool.num_blocks * steps.copier.block_bytes / 2**20,
    )


@dataclass(slots=True)
class SegmentStep:
    """The side paths of the step in progress, and the batch index of the request of each.

    `own_output` is the scheduler's output without them.
    """

    paths: tuple[SidePath, ...]
    own_output: Any
    owners: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    batch: Any = None
    blocks: Any = None


class TreeSteps:
    """Wraps the methods of a runner that run a step; a step without side paths runs them alone."""

    def __init__(self, runner: Any, pool: ScratchPool) -> None:
        self.runner = runner
        self.pool = pool
        self.copier = scratch_blocks.BlockCopier(runner.kv_caches, runner.kv_cache_config.num_blocks)
        self._execute_model: Callable[..., Any] = runner.execute_model
        self._gather_batch_req_state: Callable[..., Any] = runner.gather_batch_req_state
        self._prepare_inputs: Callable[..., Any] = runner.prepare_inputs
        self._prepare_attn: Callable[..., Any] = runner.prepare_attn
        self._sample: Callable[..., Any] = runner.sample
        self._sample_tokens: Callable[..., Any] = runner.sample_tokens
        self._step: SegmentStep | None = None
        runner.execute_model = self.execute_model
        runner.gather_batch_req_state = self.gather_batch_req_state
        runner.prepare_inputs = self.prepare_inputs
        runner.prepare_attn = self.prepare_attn
        runner.sample = self.sample
        runner.sample_tokens = self.sample_tokens

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass of a step, with the segments of its side paths."""
        plan = read_plan(scheduler_output)
        self._step = None
        if plan.side_paths:
            self._step = SegmentStep(plan.side_paths, scheduler_output)
            scheduler_output = with_side_paths(scheduler_output, plan.side_paths)
        return self._execute_model(scheduler_output, *args, **kwargs)

    def gather_batch_req_state(self, scheduler_output: Any, dummy_run: bool) -> Any:
        """The state of the requests in batch order, then that of the side paths."""
        if self._step is None:
            return self._gather_batch_req_state(scheduler_output, dummy_run)
        state, _ = self._gather_batch_req_state(self._step.own_output, dummy_run)
        position = {name: index for index, name in enumerate(state.req_ids)}
        self._step.owners = np.array([position[path.request_id] for path in self._step.paths], dtype=np.int64)
        state = extend_batch_state(state, self._step.paths, self._step.owners)
        sizes = state.num_scheduled_tokens
        uniform = get_uniform_decode_token_count(
            len(sizes), state.num_tokens, int(sizes.max()), state.decode_graph_eligible
        )
        return state, uniform

    def prepare_inputs(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """The inputs of the step; every side path has its own draft tokens."""
        if self._step is not None:
            scheduler_output = self._step.own_output
        batch = self._prepare_inputs(scheduler_output, *args, **kwargs)
        if self._step is not None:
            self._step.batch = batch
            first = batch.num_reqs - len(self._step.paths)
            starts = batch.query_start_loc_np[first : batch.num_reqs]
            rows = [
                start + 1 + depth
                for start, path in zip(starts.tolist(), self._step.paths, strict=True)
                for depth in range(len(path.tokens))
            ]
            tokens = [token for path in self._step.paths for token in path.tokens]
            batch.input_ids.index_copy_(
                0,
                async_tensor_h2d(np.array(rows, dtype=np.int64), device=batch.input_ids.device),
                async_tensor_h2d(np.array(tokens, dtype=np.int32), device=batch.input_ids.device),
            )
        return batch

    def prepare_attn(self, batch: Any) -> Any:
        """Block tables and slots; side paths get scratch blocks, with the tokens of the partly filled one."""
        block_tables, slot_mappings = self._prepare_attn(batch)
        if self._step is None:
            return block_tables, slot_mappings
        first, end = batch.num_reqs - len(self._step.paths), batch.num_reqs
        starts = batch.query_start_loc_np
        path_of_row = np.repeat(np.arange(end - first), np.diff(starts[first : end + 1]))
        rows = slice(int(starts[first]), int(starts[end]))
        table = block_tables[0][first:end]
        computed = self.runner.req_states.num_computed_tokens.gpu[batch.idx_mapping[first:end]]
        blocks = self._step.blocks = scratch_blocks.assign_scratch_blocks(table, computed, self.pool)
        slot_mappings[0, rows] = scratch_blocks.slots_of_rows(
            table,
            async_tensor_h2d(path_of_row, device=table.device),
            batch.positions[rows],
            self.pool.block_size,
        )
        self.copier.copy(*scratch_blocks.copies_in(blocks))
        return block_tables, slot_mappings

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does; from then on the batch has the requests alone."""
        state = self.runner.execute_model_state
        if self._step is not None and state is not None:
            num_own = state.input_batch.num_reqs - len(self._step.paths)
            own = own_segments(state.input_batch, num_own)
            self.runner.execute_model_state = state._replace(input_batch=own)
        return self._sample_tokens(grammar_output)

    def sample(self, hidden_states: torch.Tensor, batch: Any, grammar_output: Any) -> Any:
        """Verify all segments; returns the output of every request's winning path, and keeps its KV cache."""
        if self._step is None:
            return self._sample(hidden_states, batch, grammar_output)
        step, self._step = self._step, None
        output, _, _ = self._sample(hidden_states, step.batch, grammar_output)
        owners = async_tensor_h2d(step.owners, device=self.runner.device)
        winner = path_winner.winning_segments(output.num_sampled, owners)

        def row_winner() -> torch.Tensor:
            num_rows = int(batch.cu_num_logits_np[-1])
            requests = np.repeat(np.arange(batch.num_reqs), np.diff(batch.cu_num_logits_np))
            return path_winner.rows_of_winners(
                winner,
                step.batch.cu_num_logits.long(),
                async_tensor_h2d(requests, device=self.runner.device),
                step.batch.expanded_local_pos[:num_rows].long(),
            )

        own_output = path_winner.output_of_winners(output, winner, row_winner)
        self._keep_blocks(step, winner, own_output.num_sampled)
        return own_output, own_output.num_sampled, own_output.num_rejected

    def _keep_blocks(self, step: SegmentStep, winner: torch.Tensor, num_sampled: torch.Tensor) -> None:
        """Copy the scratch blocks of side paths that won over the blocks of their requests."""
        trees = async_tensor_h2d(np.unique(step.owners), device=self.runner.device)
        num_own = num_sampled.shape[0]
        side = (winner[trees] - num_own).clamp(min=-1)
        copies = scratch_blocks.copies_back(
            step.blocks, side, num_sampled[trees].long() - 1, self.pool.block_size
        )
        self.copier.copy(*copies)


def extend_batch_state(state: Any, paths: tuple[SidePath, ...], owners: IntArray) -> Any:
    """The state of a batch with segments behind it, which have the state of their requests."""
    num_drafts = np.array([len(path.tokens) for path in paths], dtype=np.int32)

    def extend(values: Any) -> Any:
        return None if values is None else np.concatenate([values, values[owners]])

    return state._replace(
        req_ids=[*state.req_ids, *(path.name for path in paths)],
        num_scheduled_tokens=np.concatenate([state.num_scheduled_tokens, num_drafts + 1]),
        num_tokens=state.num_tokens + int((num_drafts + 1).sum()),
        num_draft_tokens_np=np.concatenate([state.num_draft_tokens_np, num_drafts]),
        idx_mapping_np=extend(state.idx_mapping_np),
        prefill_len_np=extend(state.prefill_len_np),
        num_computed_prefill_tokens_np=extend(state.num_computed_prefill_tokens_np),
        is_prefilling_np=extend(state.is_prefilling_np),
        max_seq_len_np=extend(state.max_seq_len_np),
        prefill_runs_as_decode_np=extend(state.prefill_runs_as_decode_np),
    )


def own_segments(batch: Any, num: int) -> Any:
    """The batch of the first `num` segments, for everything that follows the forward pass."""
    num_rows = int(batch.query_start_loc_np[num])
    return replace(
        batch,
        req_ids=batch.req_ids[:num],
        num_reqs=num,
        idx_mapping=batch.idx_mapping[:num],
        idx_mapping_np=batch.idx_mapping_np[:num],
        num_scheduled_tokens=batch.num_scheduled_tokens[:num],
        num_tokens=num_rows,
        num_draft_tokens=int(batch.num_draft_tokens_per_req[:num].sum()),
        num_draft_tokens_per_req=batch.num_draft_tokens_per_req[:num],
        query_start_loc=batch.query_start_loc[: num + 1],
        query_start_loc_np=batch.query_start_loc_np[: num + 1],
        seq_lens=batch.seq_lens[:num],
        seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound[:num],
        num_computed_tokens_np=batch.num_computed_tokens_np[:num],
        prefill_len_np=batch.prefill_len_np[:num],
        num_computed_prefill_tokens_np=batch.num_computed_prefill_tokens_np[:num],
        is_prefilling_np=batch.is_prefilling_np[:num],
        cu_num_logits=batch.cu_num_logits[: num + 1],
        cu_num_logits_np=batch.cu_num_logits_np[: num + 1],
    )
