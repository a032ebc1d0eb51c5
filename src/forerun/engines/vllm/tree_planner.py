"""Draft trees in the scheduler: which paths of a tree are verified, and as which rows.

The longest path of a tree is the request's own chain, which vLLM schedules. The other paths are side paths:
the plan of the step carries them to the workers. To vLLM's scheduler the step verifies the chain alone, of
which as many tokens are accepted as the winning path has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.control.controller import Controller
from forerun.drafters.tree_merge import descend
from forerun.engines.proposal_merger import ProposalMerger
from forerun.engines.speculative_step import SpeculativeStep
from forerun.engines.top_token_rows import TopRows
from forerun.engines.tree_paths import paths_of, select_paths
from forerun.engines.vllm.scratch_pool import ScratchPool
from forerun.engines.vllm.step_plan import SidePath
from forerun.types import BoolArray, Draft, Verdict


class TreePlanner:
    """Plans the paths of draft trees within the scratch pool and the worker's buffers."""

    def __init__(
        self,
        controller: Controller,
        merger: ProposalMerger,
        pool: ScratchPool,
        max_segments: int,
        max_rows: int,
    ) -> None:
        self.controller = controller
        self.merger = merger
        self.pool = pool
        self.max_segments = max_segments
        self.max_rows = max_rows

    def select(self, step: SpeculativeStep, requests: Sequence[Any]) -> None:
        """Before the controller chooses: restrict every draft to paths that pay for their rows.

        Requests with a thinking budget keep chains: vLLM updates its state once per sequence of the batch.
        """
        trees = [index for index, draft in enumerate(step.drafts) if not draft.is_chain]
        if not trees:
            return
        candidates = self.merger.candidates(step, step.drafts)
        survival = self.controller.estimate_survival(step.control, candidates)
        ends = np.cumsum([len(draft) for draft in step.drafts]).tolist()
        price = self.controller.row_price(step.control, sum(map(len, step.drafts)))
        for index in trees:
            draft, end = step.drafts[index], ends[index]
            max_paths = 1 + self.pool.num_paths if has_tree(requests[index]) else 1
            own_price = price if step.control.adaptive[index] else 0.0
            own = survival[end - len(draft) : end]
            step.drafts[index] = draft.select(select_paths(draft, own, max_paths, own_price))

    def plan(self, step: SpeculativeStep) -> None:
        """After the controller has chosen: set the paths of every draft."""
        pairs = zip(step.requests, step.drafts, strict=True)
        step.paths = {request.name: paths_of(draft) for request, draft in pairs if len(draft)}

    def fit(self, step: SpeculativeStep, output: Any) -> tuple[SidePath, ...]:
        """After vLLM has scheduled: the side paths that fit into the step; drops the others from it.

        vLLM may have truncated a request's own chain; no side path is longer. The requests take turns.
        """
        scheduled = output.scheduled_spec_decode_tokens
        side_paths: list[SidePath] = []
        num_side = min(self.pool.num_paths, self.max_segments - len(output.num_scheduled_tokens))
        num_rows = self.max_rows - output.total_num_scheduled_tokens
        waiting: dict[str, list[list[int]]] = {}
        for name, paths in step.paths.items():
            length = len(scheduled.get(name, ()))
            own, *waiting[name] = (path[:length] for path in paths)
            step.paths[name] = [own]
        for rank in range(max(map(len, waiting.values()), default=0)):
            for name in [name for name, paths in waiting.items() if rank < len(paths)]:
                path, known = waiting[name][rank], step.paths[name]
                is_new = all(path != each[: len(path)] for each in known)
                if is_new and len(side_paths) < num_side and len(path) < num_rows:
                    num_rows -= 1 + len(path)
                    tokens = step.draft_of(name).tokens[path].tolist()
                    side_paths.append(SidePath(name, len(known), tuple(tokens)))
                    known.append(path)
        self._record_rows(step)
        return tuple(side_paths)

    def _record_rows(self, step: SpeculativeStep) -> None:
        """Tell the controller how many rows draft tokens have beyond one per token."""
        step.control.num_repeated_rows = sum(
            sum(map(len, paths)) + len(paths) - 1 - len({node for path in paths for node in path})
            for paths in step.paths.values()
        )


def has_tree(request: Any) -> bool:
    """Whether a request of vLLM may have side paths."""
    params = request.sampling_params
    return params is None or params.thinking_token_budget is None


def verified_nodes(draft: Draft, paths: Sequence[Sequence[int]]) -> BoolArray:
    """Mask of the nodes on these paths."""
    mask = np.zeros(len(draft), dtype=bool)
    for path in paths:
        mask[path] = True
    return mask


def tree_verdict(draft: Draft, output: Sequence[int]) -> Verdict:
    """The verdict on a tree of chosen tokens whose step emitted these output tokens."""
    accepted = descend(draft.parents.tolist(), draft.tokens.tolist(), output[:-1])
    return Verdict(tuple(accepted), output[-1])


def rows_of_tree(step: SpeculativeStep, name: str, rows: Mapping[str, TopRows]) -> TopRows | None:
    """The rows of a request's tree: that of the last committed token, then those of its nodes in order.

    None if the worker reported none, or if some nodes were not verified.
    """
    paths, draft = step.paths[name], step.draft_of(name)
    names = [name, *(SidePath(name, number, ()).name for number in range(1, len(paths)))]
    if not rows.keys() >= {*names} or not verified_nodes(draft, paths).all():
        return None
    where = np.zeros((1 + len(draft), 2), dtype=np.int64)
    for number, path in enumerate(paths):
        where[1 + np.array(path, dtype=np.int64)] = [(number, 1 + depth) for depth in range(len(path))]
    tokens, probs = (
        np.stack([rows[names[number]][part][row] for number, row in where.tolist()]) for part in (0, 1)
    )
    return tokens, probs
