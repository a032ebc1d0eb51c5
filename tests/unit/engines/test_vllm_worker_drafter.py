"""Drafters in the worker see the tokens that the scheduler sends and those of the steps in flight."""

from __future__ import annotations

import pickle
import random
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.engines.guarded_drafter import DrafterTotals
from forerun.engines.vllm.speculation import make_chain_drafter
from forerun.engines.vllm.step_plan import DraftingPlan, RequestUpdate
from forerun.engines.vllm.step_report import StepReport, TopTokenReport, attach_report
from forerun.engines.vllm.v2.worker_drafter import WorkerDrafter
from forerun.engines.vllm.worker_updates import WorkerUpdates
from forerun.types import RequestView

MAX_DRAFT = 6


def make_config(**settings: Any) -> Any:
    """As much of a configuration of vLLM as drafters need."""
    return SimpleNamespace(
        additional_config={"forerun": settings},
        model_config=SimpleNamespace(get_vocab_size=lambda: 50, tokenizer=None, model="nowhere"),
        speculative_config=SimpleNamespace(num_speculative_tokens=MAX_DRAFT),
        max_concurrent_batches=2,
    )


def make_request(name: str, tokens: list[int], num_prompt: int, salt: str | None = None) -> Any:
    return SimpleNamespace(
        request_id=name, all_token_ids=tokens, num_prompt_tokens=num_prompt, cache_salt=salt
    )


class Output:
    """The output of a step as vLLM's V2 runner returns it."""

    def __init__(self, sampled: dict[str, list[int]], width: int = MAX_DRAFT + 1) -> None:
        self.model_runner_output = SimpleNamespace(req_ids=list(sampled))
        self.sampled_token_ids = np.full((len(sampled), width), -1)
        for row, tokens in enumerate(sampled.values()):
            self.sampled_token_ids[row, : len(tokens)] = tokens
        self.num_sampled_tokens_np = np.array([len(tokens) for tokens in sampled.values()])
        self.num_waits = 0
        self.copy_event = SimpleNamespace(synchronize=self._wait)

    def _wait(self) -> None:
        self.num_waits += 1


def expected(config: Any, tokens: list[int], length: int) -> list[int]:
    """The draft from all tokens at once."""
    drafter = make_chain_drafter(config, DrafterTotals())
    (draft,) = drafter.propose([RequestView("other", tokens)], [length], [None])
    tokens_found: list[int] = draft.tokens.tolist()
    return tokens_found


@pytest.mark.parametrize("seed", range(5))
def test_a_draft_is_a_function_of_the_tokens_however_they_arrive(seed: int) -> None:
    chosen = random.Random(seed)
    config = make_config()
    workers = [WorkerDrafter(config) for _ in range(2)]  # two ranks
    updates = WorkerUpdates(share_outputs=False)
    tokens = [chosen.randrange(5) for _ in range(20)]
    in_flight: list[int] = []
    for number in range(30):
        length = chosen.randrange(MAX_DRAFT + 1)
        if length:
            update = updates.update(make_request("r", tokens, 20), None)
            plan = pickle.loads(pickle.dumps(DraftingPlan(number - 2, {"r": update})))
            drafts = [worker.draft(plan, {"r": length})["r"] for worker in workers]
            assert drafts[0] == drafts[1] == expected(config, tokens + in_flight, length)
            assert workers[0].last_token("r") == (tokens + in_flight)[-1]
        sampled = [chosen.randrange(5) for _ in range(chosen.randrange(1, length + 2))]
        for worker in workers:
            worker.record_output(number, Output({"other": [1], "r": sampled}))
        tokens, in_flight = tokens + in_flight, sampled


def test_only_outputs_that_the_scheduler_lacks_are_waited_for() -> None:
    worker = WorkerDrafter(make_config())
    outputs = [Output({"r": [1]}), Output({"r": [2]})]
    for number, output in enumerate(outputs):
        worker.record_output(number, output)
    worker.draft(DraftingPlan(0, {"r": RequestUpdate(0, [3, 1, 2, 3, 1], 4)}), {"r": 2})
    assert [output.num_waits for output in outputs] == [0, 1]
    assert worker.last_token("r") == 2


def test_a_step_without_a_plan_drafts_nothing() -> None:
    worker = WorkerDrafter(make_config())
    output = Output({"r": [1]})
    worker.record_output(0, output)
    assert worker.draft(None, {"r": 3}) == {}
    assert output.num_waits == 0


def test_tokens_that_the_scheduler_replaces_are_drafted_from_anew() -> None:
    """Output of a preempted request may be discarded and sampled again."""
    config, worker = make_config(), WorkerDrafter(make_config())
    prompt = [1, 2, 3, 4, 1, 2]
    worker.record_output(0, Output({"r": [3, 4, 1]}))
    worker.draft(DraftingPlan(-1, {"r": RequestUpdate(0, prompt, 6)}), {"r": 4})
    plan = DraftingPlan(0, {"r": RequestUpdate(6, [7, 1, 2, 7], 6)})
    assert worker.draft(plan, {"r": 4})["r"] == expected(config, [*prompt, 7, 1, 2, 7], 4)


@pytest.mark.parametrize(("salt", "is_found"), [("a", True), ("b", False)])
def test_finished_outputs_are_shared_within_a_salt(salt: str, is_found: bool) -> None:
    worker, updates = WorkerDrafter(make_config(share_outputs=True)), WorkerUpdates(share_outputs=True)
    updates.finish(make_request("first", [9, 8, 21, 22, 23, 24, 25, 26], 2, "a"), None)
    update = updates.update(make_request("second", [31, 32, 21, 22, 23], 5, salt), None)
    plan = DraftingPlan(-1, {"second": update}, updates.take_finished())
    assert worker.draft(plan, {"second": 2})["second"] == ([24, 25] if is_found else [])
    assert not updates.take_finished()


def test_every_token_is_sent_once() -> None:
    updates = WorkerUpdates(share_outputs=False)
    tokens = [1, 2, 3]
    first = updates.update(make_request("r", tokens, 3), ("suffix",))
    tokens += [4, 5]
    second = updates.update(make_request("r", tokens, 3), ("suffix",))
    assert (first.start, list(first.tokens), second.start, list(second.tokens)) == (0, [1, 2, 3], 3, [4, 5])
    updates.finish(make_request("unknown", [1], 1), None)
    updates.finish(make_request("r", tokens, 3), None)
    assert list(updates.take_finished()) == ["r"]
    assert updates.update(make_request("r", tokens, 3), None).start == 0


def with_rows(output: Output, rows: dict[str, list[int]]) -> Output:
    """The output with logits: the likeliest next token at every row of these requests, and its followers."""
    tokens = np.array([token for each in rows.values() for token in each], dtype=np.int32)
    report = TopTokenReport(
        tuple(rows),
        tuple(accumulate(map(len, rows.values()))),
        tokens[:, None] + np.arange(3, dtype=np.int32),
        np.tile(np.array([0.8, 0.1, 0.05], dtype=np.float32), (len(tokens), 1)),
    )
    attach_report(output.model_runner_output, StepReport(top_tokens=report))
    return output


def test_the_logits_of_the_last_step_are_recycled() -> None:
    worker = WorkerDrafter(make_config())
    assert worker.draft(DraftingPlan(-1, {"r": RequestUpdate(0, [1, 2], 2)}), {"r": 2}) == {"r": []}
    rows = {"other": [40, 41], "r": [7, 3, 3]}  # two rows of padding behind an empty draft
    worker.record_output(0, with_rows(Output({"other": [1], "r": [9]}), rows))
    drafts = worker.draft(DraftingPlan(-1, {"r": RequestUpdate(2, [], 2)}), {"r": 2})
    assert drafts["r"][:1] == [7], "the likeliest token of the last logits that was not sampled"


def test_logits_of_ended_requests_are_ignored() -> None:
    worker = WorkerDrafter(make_config())
    worker.draft(DraftingPlan(-1, {"r": RequestUpdate(0, [1, 2], 2)}), {"r": 2})
    worker.record_output(0, with_rows(Output({"r": [9]}), {"r": [7]}))
    plan = DraftingPlan(0, {"r2": RequestUpdate(0, [1, 2, 9], 3)}, {"r": RequestUpdate(2, ())})
    assert worker.draft(plan, {"r2": 2}) == {"r2": []}
