"""Draft trees in vLLM's scheduler: side paths, their limits, and verdicts on trees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.engines.proposal_merger import ProposalMerger
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.vllm.scratch_pool import MAX_SIDE_PATHS, ScratchPool
from forerun.engines.vllm.step_plan import SidePath
from forerun.engines.vllm.tree_planner import TreePlanner, rows_of_tree, tree_verdict, verified_nodes
from forerun.errors import ConfigurationError
from forerun.types import Draft, RequestView

FLAT = StepCost((1, 64), (1.0, 1.0))
STEEP = StepCost((1, 64), (1.0, 64.0))
POOL = ScratchPool(num_cache_blocks=64, block_size=16, blocks_per_path=2, num_paths=4)


def draft_tree() -> Draft:
    """Tokens 10 11 12, with a branch 10 13 and a branch 14 15."""
    survival = np.array([0.6, 0.3, 0.5, 0.2, 0.4, 0.25], dtype=np.float32)
    return Draft(
        np.array([10, 14, 11, 13, 12, 15]),
        np.array([-1, -1, 0, 0, 2, 1]),
        np.zeros(6, dtype=bool),
        source=("suffix",) * 6,
        survival=survival,
    )


def planner(
    cost: StepCost = FLAT, pool: ScratchPool = POOL, *, max_segments: int = 8, max_rows: int = 64
) -> TreePlanner:
    controller = Controller(cost)
    merger = ProposalMerger(controller, trees=True)
    return TreePlanner(controller, merger, pool, max_segments, max_rows)


def begin(planner: TreePlanner, num: int = 1, *, adaptive: bool = False) -> SpeculativeStep:
    names = [f"r{index}" for index in range(num)]
    for name in names:
        planner.controller.admit(name, greedy=True, adaptive=adaptive)
    requests = [DraftRequest(RequestView(name, [1, 2, 3], num_prompt=2), 6) for name in names]
    step = SpeculativeStep(planner.controller.begin_step(names, num), requests)
    step.drafts = [draft_tree() for _ in names]
    return step


def vllm_request(thinking_token_budget: int | None = None) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(thinking_token_budget=thinking_token_budget))


def scheduled(step: SpeculativeStep, lengths: list[int], num_other: int = 0) -> Any:
    names = [request.name for request in step.requests]
    chains = {name: [7] * length for name, length in zip(names, lengths, strict=True) if length}
    num_tokens = {name: 1 + len(chains.get(name, ())) for name in names}
    return SimpleNamespace(
        scheduled_spec_decode_tokens=chains,
        num_scheduled_tokens=num_tokens,
        total_num_scheduled_tokens=sum(num_tokens.values()) + num_other,
    )


def plan(planner: TreePlanner, step: SpeculativeStep, lengths: list[int], num_other: int = 0) -> list[Any]:
    planner.select(step, [vllm_request() for _ in step.requests])
    planner.plan(step)
    side_paths = planner.fit(step, scheduled(step, lengths, num_other))
    return [(path.request_id, path.number, path.tokens) for path in side_paths]


def test_the_longest_path_is_the_requests_own_and_the_others_are_side_paths() -> None:
    trees = planner()
    step = begin(trees)
    assert plan(trees, step, [3]) == [("r0", 1, (10, 13)), ("r0", 2, (14, 15))]
    assert step.drafts[0].tokens[step.paths["r0"][0]].tolist() == [10, 11, 12]
    assert verified_nodes(step.drafts[0], step.paths["r0"]).all()
    assert step.control.num_repeated_rows == 3


def test_side_paths_are_no_longer_than_a_truncated_chain() -> None:
    trees = planner()
    step = begin(trees)
    assert plan(trees, step, [1]) == [("r0", 1, (14,))]
    nodes = verified_nodes(step.drafts[0], step.paths["r0"])
    assert step.drafts[0].tokens[nodes].tolist() == [10, 14]


def test_a_request_that_was_not_scheduled_has_no_side_paths() -> None:
    trees = planner()
    assert plan(trees, begin(trees), [0]) == []


@pytest.mark.parametrize(
    "trees",
    [planner(max_segments=4), planner(pool=ScratchPool(64, 16, 2, 2)), planner(max_rows=8 + 6)],
    ids=["segments", "scratch blocks", "rows"],
)
def test_requests_take_turns_for_what_is_limited(trees: TreePlanner) -> None:
    step = begin(trees, 2)
    assert plan(trees, step, [3, 3]) == [("r0", 1, (10, 13)), ("r1", 1, (10, 13))]


def test_requests_with_a_thinking_budget_keep_chains() -> None:
    trees = planner()
    step = begin(trees)
    trees.select(step, [vllm_request(thinking_token_budget=9)])
    assert step.drafts[0].is_chain
    assert step.drafts[0].tokens.tolist() == [10, 11, 12]


def test_adaptive_requests_return_to_chains_where_rows_are_expensive() -> None:
    for cost, is_chain in ((FLAT, False), (STEEP, True)):
        trees = planner(cost)
        step = begin(trees, adaptive=True)
        trees.select(step, [vllm_request()])
        assert step.drafts[0].is_chain == is_chain


def test_the_verdict_on_a_tree_follows_the_output() -> None:
    draft = draft_tree()
    assert tree_verdict(draft, [14, 15, 9]).accepted == (1, 5)
    assert tree_verdict(draft, [10, 13, 9]).accepted == (0, 3)
    verdict = tree_verdict(draft, [14])
    assert (verdict.accepted, verdict.next_token) == ((), 14)


def test_rows_of_paths_are_put_in_the_order_of_nodes() -> None:
    trees = planner()
    step = begin(trees)
    plan(trees, step, [3])
    number = np.arange(4)[:, None]
    names = ["r0", SidePath("r0", 1, ()).name, SidePath("r0", 2, ()).name]
    rows = {name: (number + 10 * path, number * 0.1) for path, name in enumerate(names)}
    found = rows_of_tree(step, "r0", rows)
    assert found is not None
    assert found[0][:, 0].tolist() == [0, 11, 21, 2, 12, 3, 22]
    assert rows_of_tree(step, "r0", {"r0": rows["r0"]}) is None


def test_outcomes_cover_the_verified_nodes_of_a_tree_only() -> None:
    trees = planner()
    step = begin(trees)
    plan(trees, step, [1])
    draft = step.drafts[0]
    nodes = verified_nodes(draft, step.paths["r0"])
    step.proposals[0]["suffix"] = draft
    step.record_verdict(0, tree_verdict(draft, [14, 9]), nodes=nodes)
    accepted, verified = step.outcome_masks()
    assert verified.tolist() == nodes.tolist()
    assert np.flatnonzero(accepted).tolist() == [1]
    part, verdict = step.outcomes[0]["suffix"]
    assert part.tokens.tolist() == [10, 14]
    assert verdict.accepted == (1,)


def test_the_scratch_pool_leaves_room_for_the_longest_request() -> None:
    pool = ScratchPool.fit(1000, 16, max_draft=16, max_num_seqs=256, max_model_len=4096)
    assert (pool.num_paths, pool.blocks_per_path) == (MAX_SIDE_PATHS, 2)
    assert pool.first_block == 1000 - 32
    tight = ScratchPool.fit(264, 16, max_draft=16, max_num_seqs=256, max_model_len=4096)
    assert (tight.num_paths, tight.first_block) == (3, 258)
    assert ScratchPool.fit(264, 16, max_draft=1, max_num_seqs=256, max_model_len=64).blocks_per_path == 2


@pytest.mark.parametrize("changes", [{"num_cache_blocks": 258}, {"max_num_seqs": 1}])
def test_a_cache_without_room_for_a_side_path_is_refused(changes: dict[str, int]) -> None:
    given = {"num_cache_blocks": 264, "max_num_seqs": 8, **changes}
    blocks = given.pop("num_cache_blocks")
    with pytest.raises(ConfigurationError, match="draft trees need 2 KV-cache blocks"):
        ScratchPool.fit(blocks, 16, max_draft=16, max_model_len=4096, **given)
