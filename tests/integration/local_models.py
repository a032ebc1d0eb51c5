"""Tiny models, drafters and engines for tests of the local engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from forerun.config import SpeculationConfig
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.registry import warm_up
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Request, Result
from forerun.models.runner import Runner
from forerun.types import ROOT, Draft, Drafter, Proposal, RequestView, Verdict

VOCAB = 16


def make_draft_model(tiny_llama: Any, noise: float = 0.05) -> Any:
    """The target with noise on its weights: some of its draft tokens are accepted, some are rejected."""
    torch.manual_seed(1)
    model = copy.deepcopy(tiny_llama)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise * torch.randn_like(weight))
    return model


def make_engine(
    tiny_llama: Any,
    drafters: Mapping[str, Drafter],
    *,
    slots: int = 4,
    length: int = 128,
    trees: bool = True,
    default_drafters: Sequence[str] | None = None,
    **config: Any,
) -> Engine:
    """An engine that verifies every draft token, unless `adaptive` is set."""
    runner = Runner(copy.deepcopy(tiny_llama), num_slots=slots, max_length=length)
    settings = SpeculationConfig(**{"adaptive": False} | config)
    return Engine(runner, drafters, default_drafters=default_drafters, trees=trees, config=settings)


def make_drafters(tiny_llama: Any, *names: str, slots: int = 4, branches: int = 1) -> dict[str, Drafter]:
    """New drafters by name."""

    def draft_model(noise: float, branches: int) -> ModelDrafter:
        model = make_draft_model(tiny_llama, noise)
        return ModelDrafter(Runner(model, num_slots=slots, max_length=128), VOCAB, branches=branches)

    makers: dict[str, Callable[[], Drafter]] = {
        "ngram": NgramDrafter,
        "ngram, sampled": lambda: NgramDrafter(order=2, rng=np.random.default_rng(5), vocab_size=VOCAB),
        "suffix": SuffixDrafter,
        "model": lambda: draft_model(0.05, branches),
        "model with trees": lambda: draft_model(0.05, 3),
        "model 2": lambda: draft_model(0.1, 1),
        "sampled tree": SampledTree,
    }
    return {name: warm_up(makers[name]()) for name in names}


def generate(engine: Engine, requests: Sequence[Request]) -> list[Result]:
    """The results of requests, in their order."""
    for request in requests:
        engine.add(request)
    results = {update.id: update.result for update in engine.stream() if update.result is not None}
    return [results[request.id] for request in requests]


class SampledTree:
    """Samples a tree from a fixed q: three children of the root without replacement, one below each."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        weights = np.arange(1, VOCAB + 1, dtype=np.float64)
        self.q = torch.tensor(weights / weights.sum(), dtype=torch.float32)

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self._tree() if budget >= 6 else Draft.chain([]) for budget in budgets]

    def _tree(self) -> Draft:
        p = self.q.double().numpy()
        top = self.rng.choice(VOCAB, size=3, replace=False, p=p / p.sum())
        below = self.rng.choice(VOCAB, size=3, p=p / p.sum())
        distinct, independent = Proposal(self.q, replacement=False), Proposal(self.q)
        return Draft(
            tokens=np.concatenate([top, below]).astype(np.int64),
            parents=np.array([ROOT, ROOT, ROOT, 0, 1, 2]),
            sampled=np.ones(6, dtype=bool),
            q={ROOT: distinct, 0: independent, 1: independent, 2: independent},
            source=("sampled tree",) * 6,
        )

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        pass

    def forget(self, id: str) -> None:
        pass


class OwnLinear(torch.nn.Linear):
    """A linear layer that keeps its weights as they are in invariant mode: its kernel depends on the rows."""

    @classmethod
    def of(cls, linear: torch.nn.Linear) -> OwnLinear:
        """A layer with the weights of another."""
        own = cls(linear.in_features, linear.out_features, linear.bias is not None, dtype=linear.weight.dtype)
        own.load_state_dict(linear.state_dict())
        return own
