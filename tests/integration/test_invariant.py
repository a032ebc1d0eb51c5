"""Invariant mode of the local engine: logits depend on a request's own tokens alone, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from forerun.config import SpeculationConfig
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.local.engine import Engine
from forerun.engines.local.llm import LLM
from forerun.engines.local.request import Request
from forerun.errors import ConfigurationError, UnsupportedModel
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.invariant_runner import InvariantRunner
from forerun.models.packed_linear import PackedLinear
from forerun.models.row_attention import RowContexts, attend_rows
from forerun.models.runner import Runner
from forerun.models.vector_loops import splits_into_whole_vectors
from forerun.types import Drafter, SamplingParams
from integration.local_models import OwnLinear, generate, make_draft_model
from random_models import random_llama

VOCAB = 64
DTYPES = [torch.float32, torch.bfloat16]
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 40)


@pytest.fixture(scope="module")
def llama() -> Any:
    """Wide enough that the kernels of linear layers depend on the number of rows."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return random_llama(VOCAB, (192, 512), (6, 2), max_length=256, spread=0.12)


def runner_of(llama: Any, dtype: torch.dtype) -> InvariantRunner:
    model = copy.deepcopy(llama).to(dtype)
    return InvariantRunner(model, num_slots=4, max_length=128)


def logits_in_chunks(runner: Runner, sizes: Sequence[int], beside: Sequence[int] = ()) -> torch.Tensor:
    """The logits after every one of `TOKENS`, computed in chunks, perhaps beside another sequence."""
    slot, other, logits, first = runner.allocate(), runner.allocate(), [], 0
    for size in sizes:
        inputs = [InputRows(slot, TOKENS[first : first + size], num_logits=size)]
        if beside:
            inputs.insert(0, InputRows(other, list(beside), num_logits=0))
        logits.append(runner.forward(inputs))
        runner.commit({slot: range(size), **({other: range(len(beside))} if beside else {})})
        first += size
    runner.free(slot)
    runner.free(other)
    return torch.cat(logits)


CHUNKS = [([1] * 40, ()), ([7, 13, 20], ()), ([7, 13, 20], (3, 1, 4)), ([16, 8, 16], (9,) * 9)]


def all_equal(runner: Runner) -> bool:
    """Whether the logits are bitwise equal in whatever chunks and beside whatever sequence."""
    whole = logits_in_chunks(runner, [40])
    return all(torch.equal(whole, logits_in_chunks(runner, *each)) for each in CHUNKS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_do_not_depend_on_chunks_or_other_sequences(llama: Any, dtype: torch.dtype) -> None:
    assert all_equal(runner_of(llama, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_one_size_are_enough(llama: Any, dtype: torch.dtype) -> None:
    """On a CPU where no other block size has the logits of the reference."""
    model = copy.deepcopy(llama).to(dtype)
    assert all_equal(InvariantRunner(model, block_sizes=[8], num_slots=4, max_length=128))


def test_a_single_linear_layer_without_packed_weights_is_detected(llama: Any) -> None:
    runner = runner_of(llama, torch.float32)  # rounding to bfloat16 hides most differences of a small model
    assert 2 in runner.block_sizes
    runner.model.model.layers[0].mlp.down_proj = OwnLinear.of(llama.model.layers[0].mlp.down_proj)
    assert not all_equal(runner)


def test_block_sizes_that_change_logits_are_not_used(llama: Any) -> None:
    model = copy.deepcopy(llama)
    model.model.layers[0].mlp.down_proj = OwnLinear.of(llama.model.layers[0].mlp.down_proj)
    runner = InvariantRunner(model, num_slots=4, max_length=128)
    assert 16 in runner.block_sizes
    assert 2 not in runner.block_sizes
    assert all_equal(runner)


def test_the_given_model_is_not_changed(llama: Any) -> None:
    model = copy.deepcopy(llama)
    runner = InvariantRunner(model, num_slots=2, max_length=64)
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    assert type(runner.model.model.layers[0].mlp.down_proj) is PackedLinear
    assert runner.model.model.embed_tokens.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_linear_layer_is_a_linear_layer(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 80, bias, dtype=dtype)
    rows = torch.randn(1, 24, 96, dtype=dtype)
    with torch.inference_mode():
        found, expected = PackedLinear(linear)(rows), linear(rows)
    assert found.dtype == dtype
    assert (found - expected).abs().max() < (1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize(
    ("num_elements", "num_threads", "expected"),
    [
        (576, 1, True),
        (1000, 1, False),  # the last 40 elements do not fill two registers
        (8 * 11008, 2, True),
        (8 * 11008, 8, False),  # three shares of 29,355 elements
        (64 * 11008, 8, True),
    ],
)
def test_loops_that_split_into_whole_vectors(num_elements: int, num_threads: int, expected: bool) -> None:
    assert splits_into_whole_vectors(num_elements, num_threads) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_path_of_a_tree_has_the_logits_of_a_chain(llama: Any, dtype: torch.dtype) -> None:
    runner = runner_of(llama, dtype)
    expected = logits_in_chunks(runner, [40])
    slot = runner.allocate()
    runner.forward([InputRows(slot, TOKENS[:20], num_logits=0)])
    runner.commit({slot: range(20)})
    tree = [TOKENS[20], 5, TOKENS[21], 6, TOKENS[22], TOKENS[23]]
    parents = np.array([COMMITTED, COMMITTED, 0, 1, 2, 4])
    found = runner.forward([InputRows(slot, tree, parents, num_logits=6)])
    assert torch.equal(found[[0, 2, 4, 5]], expected[20:24])
    runner.commit({slot: [0, 2, 4, 5]})
    assert torch.equal(runner.forward([InputRows(slot, TOKENS[24:], num_logits=16)]), expected[24:])


PROMPTS = [
    tuple(np.random.default_rng(seed).integers(0, VOCAB, 5 + 9 * seed).tolist()) * 2 for seed in range(6)
]
SAMPLING = {"greedy": SamplingParams(temperature=0.0), "seeded": SamplingParams(temperature=0.8, seed=3)}


def outputs_of(llama: Any, drafter: str | None, batch: int, *, trees: bool) -> tuple[Any, int]:
    """The outputs of all requests in bfloat16, and the number of accepted draft tokens."""
    runner = InvariantRunner(copy.deepcopy(llama).bfloat16(), num_slots=batch, max_length=200)
    drafters: dict[str, Drafter] = {}
    if drafter == "suffix":
        drafters["suffix"] = SuffixDrafter()
    elif drafter == "model":
        draft = Runner(make_draft_model(llama, 0.01).bfloat16(), num_slots=batch, max_length=200)
        drafters["model"] = ModelDrafter(draft, VOCAB, branches=2 if trees else 1)
    config = SpeculationConfig(adaptive=False, max_draft=6)
    requests = [
        Request(f"{name} {number}", prompt, max_tokens=24, sampling=sampling)
        for (name, sampling), (number, prompt) in product(SAMPLING.items(), enumerate(PROMPTS))
    ]
    results = generate(Engine(runner, drafters, trees=trees, config=config), requests)
    num_accepted = sum(result.stats.num_tokens - result.stats.num_steps for result in results)
    return [result.token_ids for result in results], num_accepted


@pytest.fixture(scope="module")
def baseline(llama: Any) -> Any:
    """Non-speculative decoding, one request at a time."""
    return outputs_of(llama, None, 1, trees=False)[0]


@pytest.mark.parametrize(
    ("drafter", "trees", "batch"),
    [("suffix", True, 1), ("suffix", False, 4), ("model", True, 4), ("model", False, 3)],
)
def test_bfloat16_output_does_not_depend_on_speculation_or_batch(
    llama: Any, baseline: Any, drafter: str, trees: bool, batch: int
) -> None:
    outputs, num_accepted = outputs_of(llama, drafter, batch, trees=trees)
    assert outputs == baseline
    assert num_accepted > 10


def test_bfloat16_output_does_not_depend_on_the_batch(llama: Any, baseline: Any) -> None:
    assert outputs_of(llama, None, 12, trees=False)[0] == baseline


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_attention_is_attention(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(rows, heads, 32).to(dtype) for rows, heads in ((4, 6), (50, 2), (50, 2)))
    # Row 0 sees cache rows 5 to 14 and 20; row 1 sees 30 alone; row 2 sees 0 to 39, 41, 43 and 44.
    contexts = RowContexts(
        np.array([5, 0, 0]), np.array([10, 0, 40]), np.array([20, 30, 41, 43, 44]), np.array([0, 1, 2, 5])
    )
    seen = [[*range(5, 15), 20], [30], [*range(40), 41, 43, 44]]
    found = attend_rows(contexts, query, key, value, None)
    for row, rows in enumerate(seen):
        keys, values = (each[rows].float().repeat_interleave(3, 1) for each in (key, value))
        weights = torch.einsum("hd,nhd->hn", query[row].float(), keys).div(32**0.5).softmax(-1)
        expected = torch.einsum("hn,nhd->hd", weights, values)
        assert (found[row].float() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    assert torch.equal(found[3], found[2])  # padding


def test_contexts_of_some_rows() -> None:
    contexts = RowContexts(np.arange(4), np.arange(4) * 10, np.arange(10), np.array([0, 1, 3, 6, 10]))
    chosen = contexts.select(np.array([3, 1]))
    assert chosen.first.tolist() == [3, 1]
    assert chosen.lengths.tolist() == [30, 10]
    assert chosen.ancestors.tolist() == [6, 7, 8, 9, 1, 2]
    assert chosen.starts.tolist() == [0, 4, 6]


def test_an_unsupported_dtype_is_an_error(llama: Any) -> None:
    with pytest.raises(ConfigurationError, match="float16"):
        LLM(copy.deepcopy(llama).half(), "none", invariant=True)


class RowsSummed(torch.nn.Module):
    """A layer in which rows influence one another in their last bits."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + 1e-6 * rows.sum(1, keepdim=True)


def test_a_model_whose_rows_influence_one_another_is_refused(llama: Any) -> None:
    model = copy.deepcopy(llama)
    model.model.norm = torch.nn.Sequential(model.model.norm, RowsSummed())
    with pytest.raises(UnsupportedModel, match="other rows"):
        InvariantRunner(model)


def test_a_request_can_demand_the_mode(llama: Any) -> None:
    prompt = [1, 2, 3]
    assert (
        LLM(copy.deepcopy(llama), "none", invariant=True).generate([prompt], invariant=True)[0].error is None
    )
    ordinary = LLM(copy.deepcopy(llama), "none", invariant=False)
    assert "invariant=True" in str(ordinary.generate([prompt], invariant=True)[0].error)


def test_the_mode_is_on_where_it_costs_no_throughput(llama: Any) -> None:
    assert LLM(copy.deepcopy(llama), "none").invariant
    assert not LLM(copy.deepcopy(llama).bfloat16(), "none").invariant


def test_a_model_that_does_not_support_the_mode_runs_without_it(llama: Any) -> None:
    model = copy.deepcopy(llama)
    model.model.norm = torch.nn.Sequential(model.model.norm, RowsSummed())
    assert not LLM(model, "none").invariant


def test_the_key_of_the_configuration_selects_the_mode(llama: Any) -> None:
    for invariant in (False, True):
        model = copy.deepcopy(llama).bfloat16()
        assert LLM(model, "none", config=SpeculationConfig(invariant=invariant)).invariant == invariant
