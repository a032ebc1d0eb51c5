"""The winning path of every draft tree; nothing here synchronizes with the host.

All paths of a request are verified with the noise of the same positions, so their output tokens are equal
until their draft tokens diverge. The path with the most accepted tokens wins, the request's own chain where
it is one of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors


def winning_segments(num_sampled: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """The segment that wins for each request.

    The first segments are the requests' own chains; `owner` has the request of each segment after them.
    """
    num_segments = num_sampled.shape[0]
    num_own = num_segments - owner.shape[0]
    segment = torch.arange(num_segments, device=num_sampled.device)
    score = num_sampled.long() * num_segments + (num_segments - 1 - segment)
    best = score[:num_own].scatter_reduce(0, owner, score[num_own:], "amax")
    return num_segments - 1 - best % num_segments


def output_of_winners(output: Any, winner: torch.Tensor, row_winner: Any) -> Any:
    """vLLM's sampler output for the requests, given that for all segments.

    A request's own number of rejected tokens counts the rows of its own chain, as the scheduler does.
    `row_winner` returns the row of the winning segment for each row of the requests' own chains; it is called
    only if there are logprobs.
    """
    num_own = winner.shape[0]
    num_sampled = output.num_sampled[winner]
    num_rejected = output.num_rejected[:num_own] + output.num_sampled[:num_own] - num_sampled
    logprobs = output.logprobs_tensors
    return replace(
        output,
        sampled_token_ids=output.sampled_token_ids[winner],
        num_sampled=num_sampled,
        num_rejected=num_rejected,
        logprobs_tensors=None if logprobs is None else logprobs_of_rows(logprobs, row_winner(), num_own),
    )


def rows_of_winners(
    winner: torch.Tensor, starts: torch.Tensor, own_request: torch.Tensor, depth: torch.Tensor
) -> torch.Tensor:
    """The row of the winning segment for each row of the requests' own chains.

    `starts` are the first rows of all segments, and the end. A row behind the end of a shorter winning path
    gets its last row; it belongs to no output token.
    """
    segment = winner[own_request]
    return torch.minimum(starts[segment] + depth, starts[segment + 1] - 1)


def logprobs_of_rows(logprobs: LogprobsTensors, rows: torch.Tensor, num_requests: int) -> LogprobsTensors:
    """The log-probabilities of these rows, which are grouped by request as before."""
    ends = logprobs.cu_num_generated_tokens
    return LogprobsTensors(
        logprobs.logprob_token_ids[rows],
        logprobs.logprobs[rows],
        logprobs.selected_token_ranks[rows],
        None if ends is None else ends[: num_requests + 1],
    )
