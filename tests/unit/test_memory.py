"""What verification holds beside the logits, counted exactly: every tensor while it lives."""

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

VOCAB, REQUESTS, NODES = 4_096, 48, 64


SAMPLING = {
    "chain": SamplingParams(),
    "tree": SamplingParams(temperature=0.9),
    "truncated": SamplingParams(temperature=0.9, top_p=0.95),
    "follow": SamplingParams(seed=1),
    "nearly all": SamplingParams(temperature=0.9, top_k=VOCAB - 1),
    "nearly all, seeded": SamplingParams(temperature=0.9, top_k=VOCAB - 1, min_p=1e-9, seed=1),
    "everything": SamplingParams(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, logit_bias={1: 1.0}),
}


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of tensors made under it and remembers the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, int] = {}
        self.peak = 0

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


def rounds_of(kind: str, q: torch.Tensor) -> list[VerifyRequest]:
    dice = np.random.default_rng(0)
    rounds = []
    for request in range(REQUESTS):
        tokens = dice.integers(0, VOCAB, NODES)
        if kind == "tree":
            parents = np.array([max(-1, (node - 4) // 4) for node in range(NODES)])
            proposals = {int(parent): Proposal(q) for parent in set(parents.tolist())}
            draft = Draft(tokens, parents, np.ones(NODES, dtype=bool), proposals)
        else:
            draft = Draft.chain(tokens, q=[Proposal(q)] * NODES)
        rounds.append(VerifyRequest(draft, SAMPLING[kind], key=request, length=10))
    return rounds


@pytest.mark.parametrize("kind", list(SAMPLING))
def test_verification_stays_within_its_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on the bytes per entry of one row: 256 requests of 64 nodes at 256k tokens need no more
    than WORKING_BYTES, since requests are taken so many at a time.
    """
    logits = torch.randn(REQUESTS * (NODES + 1), VOCAB, generator=torch.Generator().manual_seed(0))
    q = torch.softmax(torch.randn(VOCAB), dim=-1)
    rounds = rounds_of(kind, q)
    allowed = 8 * 2**20
    monkeypatch.setattr(verify_module, "WORKING_BYTES", allowed)
    with Meter() as meter:
        verify(rounds, logits)
    assert 0 < meter.peak <= allowed
    assert meter.peak < logits.nbytes / 5


def test_the_bound_is_below_a_gigabyte_and_takes_many_requests_at_the_largest_sizes() -> None:
    assert verify_module.WORKING_BYTES < 10**9
    parts = list(verify_module._parts(list(range(256)), 256_000))
    assert len(parts) < 40
    assert sum(len(part) for part in parts) == 256


def test_the_meter_notices_what_is_held() -> None:
    with Meter() as meter:
        held = [torch.zeros(1000) for _ in range(5)]
        del held[:]
        torch.zeros(10)
    assert 20_000 <= meter.peak < 21_000
