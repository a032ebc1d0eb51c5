"""`match_target` on vLLM's V2 runner: which tokens it accepts, and that it never waits for the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from vllm import SamplingParams, triton_utils
from vllm.v1.worker.cpu.buffer_utils import UvaBuffer
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample.logprob import LogprobTokenIdsState
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

from forerun.core.draft_forest import Forest
from forerun.core.target_matching import match_target
from forerun.engines.vllm.step_plan import PLACEHOLDER
from forerun.engines.vllm.v2 import verification
from forerun.engines.vllm.v2.verification import MatchTargetSampler, match_rows, output_by_row
from forerun.types import Draft

pytestmark = pytest.mark.filterwarnings("default")

Match = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def reference(drafts: list[list[int]], target: list[int]) -> list[list[int]]:
    """The outputs of `core.match_target`, which is proved by enumeration."""
    forest = Forest.pack([Draft.chain(draft) for draft in drafts])
    verdicts = match_target(forest, np.array(target))
    return [verdict.tokens(Draft.chain(draft)) for verdict, draft in zip(verdicts, drafts, strict=True)]


def batched(match: Match, drafts: list[list[int]], target: list[int], max_draft: int) -> list[list[int]]:
    """The outputs of the batched version, without padding."""
    sizes = [len(draft) + 1 for draft in drafts]
    inputs = torch.tensor([token for draft in drafts for token in (99, *draft)])
    starts = torch.tensor([0, *np.cumsum(sizes).tolist()], dtype=torch.int32)
    output, num_sampled = match(torch.tensor(target), inputs, starts, max_draft)
    assert output.shape == (len(drafts), max_draft + 1)
    lists = [row[:num] for row, num in zip(output.tolist(), num_sampled.tolist(), strict=True)]
    assert all(PLACEHOLDER not in tokens for tokens in lists)
    assert (output == PLACEHOLDER).sum() == output.numel() - num_sampled.sum()
    return lists


def all_small_batches() -> Iterator[tuple[list[list[int]], list[int]]]:
    """Two requests with drafts of up to two tokens, of a vocabulary of two, and every target token."""
    drafts = [list(draft) for size in range(3) for draft in product((0, 1), repeat=size)]
    for first, second in product(drafts, repeat=2):
        for target in product((0, 1), repeat=len(first) + len(second) + 2):
            yield [first, second], list(target)


def one_row_early(
    target: torch.Tensor, draft: torch.Tensor, starts: torch.Tensor, max_draft: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A mutant that compares a draft token with the target token of its own row."""
    return match_rows(target, draft.roll(1), starts, max_draft)


def one_rejected_kept(
    target: torch.Tensor, draft: torch.Tensor, starts: torch.Tensor, max_draft: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A mutant that emits one token behind the first rejected one, where there is a row."""
    output, num = match_rows(target, draft, starts, max_draft)
    sizes = (starts[1:] - starts[:-1]).int()
    more = torch.minimum(num + 1, sizes)
    depth = torch.arange(max_draft + 1)
    rows = (starts[:-1].long()[:, None] + depth).clamp(max=len(target) - 1)
    return torch.where(depth < more[:, None], target[rows], output), more


def test_it_accepts_the_same_tokens_as_the_proved_verifier() -> None:
    num_batches = 0
    for drafts, target in all_small_batches():
        assert batched(match_rows, drafts, target, 2) == reference(drafts, target)
        num_batches += 1
    assert num_batches == 1764


@pytest.mark.parametrize("mutant", [one_row_early, one_rejected_kept])
def test_the_comparison_detects_mutants(mutant: Match) -> None:
    assert any(
        batched(mutant, drafts, target, 2) != reference(drafts, target)
        for drafts, target in all_small_batches()
    )


def test_the_output_of_every_row_is_found_from_the_outputs_of_requests() -> None:
    output = torch.tensor([[7, 8, PLACEHOLDER], [5, PLACEHOLDER, PLACEHOLDER], [1, 2, 3]])
    starts = torch.tensor([0, 3, 4, 7], dtype=torch.int32)
    assert output_by_row(output, starts, 7).tolist() == [7, 8, 0, 5, 1, 2, 3]


VOCAB_SIZE = 64
NUM_REQUESTS = 4

SETTINGS = [
    SamplingParams(temperature=0.0, presence_penalty=0.5, bad_words=[]),
    SamplingParams(temperature=0.7, top_k=5, seed=3, repetition_penalty=1.1),
    SamplingParams(temperature=1.2, top_p=0.8, min_p=0.1, logit_bias={4: 1.0}),
    SamplingParams(temperature=1.0, allowed_token_ids=[1, 2, 3], min_tokens=5, logprobs=3),
]


class Kernel:
    """Stands for a Triton kernel: launching one does not wait for the device."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_, **__: None


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Triton kernels that sampling launches; fake tensors have no data for them."""
    power_of_2 = lambda n: 1 << (n - 1).bit_length()  # noqa: E731
    monkeypatch.setattr(triton_utils.triton, "next_power_of_2", power_of_2, raising=False)
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.v1.worker.gpu."):
            for attribute in vars(module):
                if attribute.endswith("_kernel"):
                    monkeypatch.setattr(module, attribute, Kernel())


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """vLLM's sampler with four requests of different settings."""
    monkeypatch.setattr(buffer_utils, "UvaBuffer", UvaBuffer)
    states = RequestState(NUM_REQUESTS, 128, 256, 3, VOCAB_SIZE, torch.device("cpu"))
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=128), reasoning_config=None, scheduler_config=None
    )
    made = Sampler(config, NUM_REQUESTS, VOCAB_SIZE, torch.device("cpu"), states, num_speculative_tokens=4)
    for index, params in enumerate(SETTINGS):
        made.add_request(index, params)
    return made


def make_batch(num_drafts: list[int]) -> Any:
    """An input batch on the device, of which the host knows sizes and indices only."""
    num_requests = len(num_drafts)
    cu_num_logits_np = np.concatenate([[0], np.cumsum(np.array(num_drafts) + 1)]).astype(np.int32)
    num_rows = int(cu_num_logits_np[-1])
    rows = torch.zeros(num_rows, dtype=torch.int64)
    return SimpleNamespace(
        num_reqs=num_requests,
        input_ids=torch.zeros(num_rows, dtype=torch.int32),
        positions=rows,
        logits_indices=rows,
        expanded_idx_mapping=rows,
        expanded_local_pos=torch.zeros(num_rows, dtype=torch.int32),
        idx_mapping=torch.zeros(num_requests, dtype=torch.int64),
        idx_mapping_np=np.arange(num_requests),
        cu_num_logits=torch.zeros(num_requests + 1, dtype=torch.int32),
        cu_num_logits_np=cu_num_logits_np,
        seq_lens=torch.zeros(num_requests, dtype=torch.int32),
        seq_lens_cpu_upper_bound=SimpleNamespace(numpy=lambda: np.full(num_requests, 20)),
    )


def verify(sampler: Sampler) -> Any:
    config = SimpleNamespace(
        num_speculative_tokens=3, enable_adaptive_verification=False, rejection_sample_method="standard"
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        verifier = MatchTargetSampler(sampler, config, torch.device("cpu"))
        logits = torch.zeros(10, VOCAB_SIZE)
        invalid = torch.zeros(10, dtype=torch.bool)
        return verifier(logits, make_batch([3, 0, 2, 1]), None, invalid)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("with_token_ids", [False, True])
def test_verification_never_waits_for_the_device(sampler: Sampler, with_token_ids: bool) -> None:
    """Fake tensors raise where a value or a size would have to be copied to the host."""
    if with_token_ids:
        sampler.logprob_token_ids_state = LogprobTokenIdsState(NUM_REQUESTS, torch.device("cpu"))
        sampler.logprob_token_ids_state.add_request(0, SamplingParams(logprob_token_ids=[5, 6]))
    output = verify(sampler)
    assert output.sampled_token_ids.shape == (NUM_REQUESTS, 4)
    assert output.logprobs_tensors.logprobs.shape == (10, 4)


def waiting(target: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A mutant that reads a token on the host."""
    target[0].item()
    return match_rows(target, *args)


@pytest.mark.usefixtures("kernels")
def test_a_verifier_that_waits_is_detected(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "match_rows", waiting)
    with pytest.raises(DataDependentOutputException):
        verify(sampler)
