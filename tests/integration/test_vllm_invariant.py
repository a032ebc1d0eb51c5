"""Invariant mode of vLLM's V1 runner: linear layers in blocks, and attention with a query per row."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from vllm import _custom_ops as ops
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from forerun.core.row_blocks import REFERENCE_ROWS
from forerun.engines.vllm.decode_shaped_attention import install_decode_shaped_attention, split_rows
from forerun.engines.vllm.invariant import BlockedLinear, _equal_sizes, install_blocked_linears
from forerun.engines.vllm.supported_config import check_supported
from forerun.errors import UnsupportedEngine

BLOCK_SIZE = 32
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64


class RecordedLinear:
    """A linear layer that records the number of rows of every call; a sabotaged one depends on positions."""

    def __init__(self, *, sabotaged: bool = False) -> None:
        self.weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
        self.sabotaged = sabotaged
        self.calls: list[int] = []

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        self.calls.append(len(x))
        out = torch.stack([torch.nn.functional.linear(row, weight, bias) for row in x])
        return out + 1e-6 * torch.arange(len(x))[:, None] if self.sabotaged else out


@pytest.mark.parametrize(
    ("shape", "calls"),
    [
        ((1, 4), [2]),
        ((2, 4), [2]),
        ((7, 4), [8]),
        ((9, 4), [8, 2]),
        ((3, 7, 4), [8, 8, 8]),
        ((0, 4), [2]),
    ],
)
def test_the_kernel_of_a_linear_layer_sees_certain_numbers_of_rows(
    shape: tuple[int, ...], calls: list[int]
) -> None:
    stock = RecordedLinear()
    x, bias = torch.randn(shape), torch.randn(6)
    found = BlockedLinear(stock, [8, 2])(x, stock.weight, bias)
    assert stock.calls == calls
    expected = [torch.nn.functional.linear(row, stock.weight, bias) for row in x.reshape(-1, 4)]
    assert found.shape == (*shape[:-1], 6)
    assert torch.equal(found.reshape(-1, 6), torch.stack(expected) if expected else torch.empty(0, 6))


class Layer(LinearBase):  # type: ignore[misc]
    """A linear layer of vLLM without its weights."""

    def __init__(self, stock: RecordedLinear) -> None:
        torch.nn.Module.__init__(self)
        self.cpu_linear: Any = stock
        self.input_size = 4
        self.weight = torch.nn.Parameter(stock.weight)


def test_every_linear_layer_is_replaced() -> None:
    model = torch.nn.ModuleList([Layer(RecordedLinear()), torch.nn.ModuleList([Layer(RecordedLinear())])])
    install_blocked_linears(model, torch.float32)
    layers = [each for each in model.modules() if isinstance(each, Layer)]
    assert [type(each.cpu_linear) for each in layers] == [BlockedLinear] * 2
    assert all(REFERENCE_ROWS in each.cpu_linear.sizes for each in layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block_sizes_of_the_real_kernel_give_rows_the_same_bits(dtype: torch.dtype) -> None:
    sizes = _equal_sizes(192, 128, dtype)
    assert sizes[0] == REFERENCE_ROWS
    assert len(sizes) > 1
    layer: Any = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(128, 192).to(dtype), requires_grad=False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    blocked = BlockedLinear(layer.cpu_linear, sizes)
    rows = torch.randn(600, 192).to(dtype)
    together = blocked(rows, layer.weight)
    for chunk in (1, 3, 16, 77):
        assert torch.equal(
            torch.cat([blocked(each, layer.weight) for each in torch.split(rows, chunk)]), together
        )


def test_a_kernel_whose_result_depends_on_the_position_is_refused() -> None:
    model = torch.nn.ModuleList([Layer(RecordedLinear()), Layer(RecordedLinear(sabotaged=True))])
    with pytest.raises(UnsupportedEngine, match=r"layer 1 .*--invariant"):
        install_blocked_linears(model, torch.float32)


def test_a_layer_that_is_not_of_vllm_is_refused() -> None:
    with pytest.raises(UnsupportedEngine, match=r"torch\.nn\.Linear"):
        install_blocked_linears(torch.nn.ModuleList([torch.nn.Linear(4, 4)]), torch.float32)


def test_layers_without_the_attention_of_cpus_are_refused() -> None:
    group = SimpleNamespace(metadata_builders=[SimpleNamespace()])
    with pytest.raises(UnsupportedEngine, match="SimpleNamespace"):
        install_decode_shaped_attention(SimpleNamespace(attn_groups=[[group]]))


def step(num_rows: list[int], seq_lens: list[int], blocks: list[list[int]], **options: Any) -> Any:
    """vLLM's metadata of a step with these rows per request."""
    starts = torch.tensor([0, *num_rows]).cumsum(0).to(torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        num_reqs=len(num_rows),
        num_actual_tokens=sum(num_rows),
        max_query_len=max(num_rows),
        max_seq_len=max(seq_lens),
        block_table_tensor=torch.tensor(blocks, dtype=torch.int32),
        slot_mapping=torch.arange(sum(num_rows)),
        **options,
    )


def test_every_row_becomes_a_request_with_its_own_length() -> None:
    given = step([3, 1, 2], [10, 5, 2], [[1, 2], [3, 0], [4, 0]])
    rows = split_rows(given)
    assert rows.query_start_loc.tolist() == list(range(7))
    assert rows.seq_lens.tolist() == [8, 9, 10, 5, 1, 2]
    assert rows.seq_lens.dtype == rows.query_start_loc.dtype == torch.int32
    assert rows.block_table_tensor.tolist() == [[1, 2]] * 3 + [[3, 0]] + [[4, 0]] * 2
    assert (rows.num_reqs, rows.num_actual_tokens, rows.max_query_len) == (6, 6, 1)
    assert given.num_reqs == 3
    assert torch.equal(rows.slot_mapping, given.slot_mapping)


def test_attention_that_is_not_causal_is_refused() -> None:
    with pytest.raises(UnsupportedEngine, match="causal"):
        split_rows(step([1], [1], [[1]], causal=False))


class KVCache:
    """One layer's keys and values: the first half of the blocks is one request's, the rest another's."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.isa = _get_attn_isa(dtype, BLOCK_SIZE, HEAD_DIM)
        shape = (26, NUM_KV_HEADS, 2 * BLOCK_SIZE, HEAD_DIM)
        self.key, self.value = torch.zeros(shape, dtype=dtype).chunk(2, dim=2)
        slots = torch.arange(26 * BLOCK_SIZE)
        key, value = torch.randn(2, len(slots), NUM_KV_HEADS, HEAD_DIM).to(dtype)
        ops.cpu_attn_reshape_and_cache(key, value, self.key, self.value, slots, self.isa)

    def attend(self, query: torch.Tensor, metadata: Any, *, split_kv: bool = False) -> torch.Tensor:
        """The output of vLLM's kernel."""
        schedule = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=metadata.num_reqs,
            num_heads=NUM_HEADS,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            seq_lens=metadata.seq_lens,
            dtype=self.dtype,
            query_start_loc=metadata.query_start_loc,
            causal=True,
            sliding_window_size=-1,
            isa=self.isa,
            enable_kv_split=split_kv,
        )
        output = torch.empty_like(query)
        ops.cpu_attention_with_kv_cache(
            query=query,
            key_cache=self.key,
            value_cache=self.value,
            output=output,
            query_start_loc=metadata.query_start_loc,
            seq_lens=metadata.seq_lens,
            scale=HEAD_DIM**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=metadata.block_table_tensor,
            softcap=0.0,
            scheduler_metadata=schedule,
            s_aux=None,
        )
        return output


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


MINE, OTHER = list(range(13)), list(range(13, 26))
STEPS = {
    "beside a decode": ([1, 1], [300, 350], 1),
    "last of five rows": ([1, 5], [300, 350], 5),
    "in the middle of a chunk": ([1, 70], [300, 390], 30),
    "beside a prefill": ([60, 1], [60, 350], 60),
}
"""Rows and lengths of two requests, and the row that is the second one's token 350."""


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_a_row_does_not_depend_on_the_other_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cache = KVCache(dtype)
    query = torch.randn(1, NUM_HEADS, HEAD_DIM).to(dtype)
    alone = cache.attend(query, split_rows(step([1], [350], [MINE])))
    for name, (num_rows, seq_lens, at) in STEPS.items():
        rows = torch.randn(sum(num_rows), NUM_HEADS, HEAD_DIM).to(dtype)
        rows[at] = query[0]
        found = cache.attend(rows, split_rows(step(num_rows, seq_lens, [OTHER, MINE])))
        assert torch.equal(found[at], alone[0]), name


@pytest.mark.usefixtures("two_threads")
def test_split_sequences_make_attention_depend_on_the_other_rows() -> None:
    torch.manual_seed(0)
    cache = KVCache(torch.float32)
    query = torch.randn(2, NUM_HEADS, HEAD_DIM)
    alone = cache.attend(query[:1], step([1], [350], [MINE]), split_kv=True)
    beside = cache.attend(query, step([1, 1], [350, 300], [MINE, OTHER]), split_kv=True)
    assert not torch.equal(alone[0], beside[0])


def config(model: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A configuration of a CPU engine in invariant mode that `check_supported` reads."""
    dense = {"enable_trace_replay": False, "enforce_eager": True, "quantization": None, "is_moe": False}
    ranks = changes.pop("tensor_parallel_size", 1)
    parallel = SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=ranks)
    settings = {
        "model_config": SimpleNamespace(**{**dense, **(model or {})}),
        "parallel_config": parallel,
        "additional_config": {"forerun": {"invariant": True}},
        "lora_config": None,
        "speculative_config": None,
        "use_v2_model_runner": False,
        "watermark_config": None,
    }
    return SimpleNamespace(**{**settings, **changes})


def test_a_dense_model_on_a_cpu_is_supported() -> None:
    check_supported(config())


@pytest.mark.parametrize(
    ("unsupported", "remedy"),
    [
        (config({"enforce_eager": False}), "--enforce-eager"),
        (config({"quantization": "gguf"}), "unquantized"),
        (config({"is_moe": True}), "dense"),
        (config(lora_config=object()), "--enable-lora"),
        (config(tensor_parallel_size=2), "--tensor-parallel-size 1"),
    ],
)
def test_other_engines_on_a_cpu_are_refused(unsupported: Any, remedy: str) -> None:
    with pytest.raises(UnsupportedEngine, match=rf"invariant mode.*{remedy}"):
        check_supported(unsupported)


def test_a_gpu_needs_the_kernels_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.engines.vllm.supported_config.is_cpu_platform", lambda: False)
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    with pytest.raises(UnsupportedEngine, match="VLLM_BATCH_INVARIANT=1"):
        check_supported(config())
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    check_supported(config())
