"""Rows of many sequences and trees in one forward pass have the logits of each path computed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import InvalidRequest, UnsupportedModel
from forerun.models import input_rows
from forerun.models import runner as runner_module
from forerun.models.attention import MAX_BATCHED_ROWS
from forerun.models.input_rows import COMMITTED, InputRows
from forerun.models.probe import ModelProbe
from forerun.models.runner import Runner, max_context_length
from forerun.types import BoolArray

TOKENS = st.lists(st.integers(0, 15), min_size=1, max_size=12)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens and parents of up to ten rows."""
    tokens = draw(st.lists(st.integers(0, 15), min_size=1, max_size=10))
    return tokens, [draw(st.integers(COMMITTED, node - 1)) for node in range(len(tokens))]


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Next-token logits after a sequence, from the model's own attention without a cache."""
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    model.set_attn_implementation(own)
    return logits


def path_to(node: int, parents: list[int]) -> list[int]:
    path: list[int] = []
    while node != COMMITTED:
        path.append(node)
        node = parents[node]
    return path[::-1]


def differences(
    model: Any, sequences: list[tuple[list[int], tuple[list[int], list[int]]]], *, slots: int = 4
) -> float:
    """The largest difference between the logits of trees in one forward pass and of their paths alone."""
    runner = Runner(model, num_slots=slots, max_length=64)
    allocated = [runner.allocate() for _ in sequences]
    for slot, (prompt, _) in zip(allocated, sequences, strict=True):
        runner.forward([InputRows(slot, prompt, num_logits=0)])
        runner.commit({slot: range(len(prompt))})
    logits = runner.forward(
        [
            InputRows(slot, tokens, np.array(parents), num_logits=len(tokens))
            for slot, (_, (tokens, parents)) in zip(allocated, sequences, strict=True)
        ]
    )
    expected = [
        reference_logits(model, prompt + [tokens[i] for i in path_to(node, parents)])
        for prompt, (tokens, parents) in sequences
        for node in range(len(tokens))
    ]
    return float((logits - torch.stack(expected)).abs().max())


@given(sequences=st.lists(st.tuples(TOKENS, trees()), min_size=1, max_size=4))
@settings(max_examples=25)
def test_every_path_of_every_tree_has_the_logits_of_the_path_alone(tiny_llama: Any, sequences: Any) -> None:
    assert differences(tiny_llama, sequences) < 1e-4


def test_every_forward_pass_of_the_probe_runs_in_inference_mode(tiny_llama: Any) -> None:
    seen: list[tuple[bool, bool]] = []

    def record(_model: Any, _inputs: Any, output: Any) -> None:
        seen.append((torch.is_inference_mode_enabled(), output.logits.requires_grad))

    hook = tiny_llama.register_forward_hook(record)
    try:
        Runner(tiny_llama, num_slots=2, max_length=64)
    finally:
        hook.remove()
    assert set(seen) == {(True, False)}


def test_a_row_that_attends_to_its_sibling_is_detected(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = input_rows.visibility

    def causal(above: BoolArray, rows: InputRows) -> BoolArray:
        num, width = real(above, rows).shape
        return np.tri(num, width, k=width - num, dtype=bool)  # always a chain

    sequences = [([3, 4], ([5, 6, 7], [-1, -1, 1]))]
    assert differences(tiny_llama, sequences) < 1e-4
    monkeypatch.setattr(runner_module, "visibility", causal)
    monkeypatch.setattr(ModelProbe, "agrees", lambda *_: True)
    assert differences(tiny_llama, sequences) > 1e-2


@given(prompt=TOKENS, tree=trees(), more=TOKENS, data=st.data())
@settings(max_examples=25)
def test_a_committed_path_continues_as_if_other_rows_had_never_been_computed(
    tiny_llama: Any,
    prompt: list[int],
    tree: tuple[list[int], list[int]],
    more: list[int],
    data: st.DataObject,
) -> None:
    tokens, parents = tree
    runner = Runner(tiny_llama, num_slots=2, max_length=64)
    slot = runner.allocate()
    runner.forward([InputRows(slot, prompt), InputRows(runner.allocate(), more)])
    runner.commit({slot: range(len(prompt))})
    runner.forward([InputRows(slot, tokens, np.array(parents))])
    node = data.draw(st.integers(COMMITTED, len(tokens) - 1))
    accepted = path_to(node, parents)
    runner.commit({slot: accepted})
    committed = prompt + [tokens[i] for i in accepted]
    assert runner.length(slot) == len(committed)
    logits = runner.forward([InputRows(slot, more)])
    assert (logits[0] - reference_logits(tiny_llama, committed + more)).abs().max() < 1e-4


def test_a_tree_can_be_computed_level_by_level(tiny_llama: Any) -> None:
    runner = Runner(tiny_llama, num_slots=1, max_length=64)
    slot = runner.allocate()
    runner.forward([InputRows(slot, [1, 2])])
    runner.commit({slot: range(2)})
    runner.forward([InputRows(slot, [3, 4], np.array([-1, -1]))])
    below = runner.forward([InputRows(slot, [5, 6], np.array([1, 0]), num_logits=2)])
    assert (below[0] - reference_logits(tiny_llama, [1, 2, 4, 5])).abs().max() < 1e-4
    assert (below[1] - reference_logits(tiny_llama, [1, 2, 3, 6])).abs().max() < 1e-4
    chained = runner.forward([InputRows(slot, [7])])
    assert (chained[0] - reference_logits(tiny_llama, [1, 2, 3, 6, 7])).abs().max() < 1e-4


def test_long_and_short_sequences_share_a_forward_pass(tiny_llama: Any) -> None:
    runner = Runner(tiny_llama, num_slots=3, max_length=200)
    sequences = [[n % 16 for n in range(length)] for length in (MAX_BATCHED_ROWS + 40, 1, 7)]
    logits = runner.forward([InputRows(runner.allocate(), sequence) for sequence in sequences])
    for row, sequence in zip(logits, sequences, strict=True):
        assert (row - reference_logits(tiny_llama, sequence)).abs().max() < 1e-4


def test_truncate_rolls_back_committed_rows(tiny_llama: Any) -> None:
    runner = Runner(tiny_llama, num_slots=1, max_length=64)
    slot = runner.allocate()
    runner.forward([InputRows(slot, [1, 2, 3, 4, 5])])
    runner.commit({slot: range(5)})
    runner.truncate(slot, 2)
    assert (
        runner.forward([InputRows(slot, [9])])[0] - reference_logits(tiny_llama, [1, 2, 9])
    ).abs().max() < 1e-4


def test_a_freed_slot_is_zeroed_for_its_next_sequence(tiny_llama: Any) -> None:
    runner = Runner(tiny_llama, num_slots=2, max_length=64)
    slot, _ = runner.allocate(), runner.allocate()
    runner.forward([InputRows(slot, list(range(12)))])
    runner.commit({slot: range(12)})
    runner.cache._values[:, :12] = torch.nan  # as a sequence with broken logits leaves it
    runner.free(slot)
    assert runner.allocate() == slot
    logits = runner.forward([InputRows(slot, [1]), InputRows(1, list(range(10)))])
    assert torch.isfinite(logits).all()
    assert (logits[0] - reference_logits(tiny_llama, [1])).abs().max() < 1e-4


def test_a_sequence_that_exceeds_its_slot_raises(tiny_llama: Any) -> None:
    runner = Runner(tiny_llama, num_slots=1, max_length=8)
    assert runner.max_length == 8
    with pytest.raises(InvalidRequest, match=r"9 tokens.* 8"):
        runner.forward([InputRows(runner.allocate(), [1] * 9)])
    assert Runner(tiny_llama, num_slots=1).max_length == max_context_length(tiny_llama) == 256


SMALL: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def make(architecture: str, **changes: Any) -> Any:
    import transformers

    config = getattr(transformers, architecture + "Config")(**SMALL | changes)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    ("architecture", "changes", "batched"),
    [
        ("Llama", {}, True),
        ("Qwen2", {}, True),
        ("Qwen3", {"head_dim": 8}, True),
        ("Mistral", {"sliding_window": 24}, True),
        ("GPTNeoX", {}, True),
        ("GPT2", {"n_head": 4, "n_embd": 32, "n_layer": 2}, True),
        ("Gemma2", {"head_dim": 8, "attn_logit_softcapping": 2.0, "sliding_window": 24}, False),
        ("Bloom", {"n_head": 4, "n_layer": 2}, None),
        ("Mamba", {"state_size": 8}, None),
    ],
)
def test_an_architecture_has_the_output_of_transformers_or_is_unsupported(
    architecture: str, changes: dict[str, Any], batched: bool | None
) -> None:
    model = make(architecture, **changes)
    prompts = [[5, 3, 9], [7, 7, 2, 4, 1]]
    expected = [
        make(architecture, **changes)
        .generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0]
        .tolist()[len(prompt) :]
        for prompt in prompts
    ]
    if batched is None:
        with pytest.raises(UnsupportedModel, match=architecture):
            Runner(model, num_slots=2)
        return
    runner = Runner(model, num_slots=2)
    assert runner._batched is batched
    assert runner.max_length == changes.get("sliding_window", 64)
    slots = [runner.allocate() for _ in prompts]
    outputs: list[list[int]] = [[], []]
    uncomputed = [list(prompt) for prompt in prompts]
    for _ in range(8):
        logits = runner.forward(
            [InputRows(slot, tokens) for slot, tokens in zip(slots, uncomputed, strict=True)]
        )
        runner.commit({slot: range(len(tokens)) for slot, tokens in zip(slots, uncomputed, strict=True)})
        uncomputed = [[int(row.argmax())] for row in logits]
        for output, (token,) in zip(outputs, uncomputed, strict=True):
            output.append(token)
    assert outputs == expected


def test_transformers_can_still_use_the_model(tiny_llama: Any) -> None:
    prompt = torch.tensor([[0, 0, 3, 4], [1, 2, 5, 6]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    tiny_llama.set_attn_implementation("sdpa")
    before = tiny_llama.generate(prompt, attention_mask=mask, **options)
    Runner(tiny_llama, num_slots=1)
    assert tiny_llama.config._attn_implementation == "forerun"
    assert tiny_llama.generate(prompt, attention_mask=mask, **options).tolist() == before.tolist()


@pytest.mark.parametrize("module", [torch, transformers])
def test_profiled_costs_are_not_reused_after_an_upgrade(
    tiny_llama: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(tiny_llama, num_slots=1, max_length=64)
    before = runner.description
    monkeypatch.setattr(module, "__version__", "999.0")
    assert runner.description != before
