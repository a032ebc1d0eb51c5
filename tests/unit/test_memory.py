"""Memory that verification allocates beyond the logits, counted exactly over all live tensors."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forerun.core import verify as verify_module
from forerun.core.verify import VerifyRequest, verify
from forerun.types import Draft, Proposal, SamplingParams

VOCAB, REQUESTS, NODES = 4_096, 24, 64


SAMPLING = {
    "chain": SamplingParams(),
    "tree": SamplingParams(temperature=0.9),
    "truncated": SamplingParams(temperature=0.9, top_p=0.95),
    "match": SamplingParams(seed=1),
    "nearly all": SamplingParams(temperature=0.9, top_k=VOCAB - 1),
    "nearly all, seeded": SamplingParams(temperature=0.9, top_k=VOCAB - 1, min_p=1e-9, seed=1),
    "everything": SamplingParams(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, logit_bias={1: 1.0}),
}


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the memory of tensors created under it and the peak of live bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, int] = {}
        self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in known:
                self._count(each)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address and address not in self.alive:
            self.alive[address] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, address, None)
            self.peak = max(self.peak, sum(self.alive.values()))


def make_requests(kind: str, q: torch.Tensor) -> list[VerifyRequest]:
    rng = np.random.default_rng(0)
    requests = []
    for request in range(REQUESTS):
        tokens = rng.integers(0, VOCAB, NODES)
        if kind == "tree":
            parents = np.array([max(-1, (node - 4) // 4) for node in range(NODES)])
            proposals = {int(parent): Proposal(q) for parent in set(parents.tolist())}
            draft = Draft(tokens, parents, np.ones(NODES, dtype=bool), proposals)
        else:
            draft = Draft.chain(tokens, q=[Proposal(q)] * NODES)
        requests.append(VerifyRequest(draft, SAMPLING[kind], key=request, length=10))
    return requests


@pytest.mark.parametrize("kind", list(SAMPLING))
def test_verification_stays_within_its_memory_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on bytes per vocabulary entry: requests are verified in parts that fit WORKING_BYTES, also
    256 requests of 64 nodes with a vocabulary of 256k.
    """
    logits = torch.randn(REQUESTS * (NODES + 1), VOCAB, generator=torch.Generator().manual_seed(0))
    q = torch.softmax(torch.randn(VOCAB), dim=-1)
    requests = make_requests(kind, q)
    allowed = 4 * 2**20
    monkeypatch.setattr(verify_module, "WORKING_BYTES", allowed)
    with Meter() as meter:
        verify(requests, logits)
    assert 0 < meter.peak <= allowed
    assert meter.peak < logits.nbytes / 5


def test_the_bound_is_below_a_gigabyte_and_splits_the_largest_batch_into_few_parts() -> None:
    assert verify_module.WORKING_BYTES < 10**9
    parts = list(verify_module._split_to_fit(list(range(256)), 256_000))
    assert len(parts) < 40
    assert sum(len(part) for part in parts) == 256


def test_the_meter_counts_live_tensors() -> None:
    with Meter() as meter:
        held = [torch.zeros(1000) for _ in range(5)]
        del held[:]
        torch.zeros(10)
    assert 20_000 <= meter.peak < 21_000
