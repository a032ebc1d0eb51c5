"""The draft models of an `LLM`: in the engine's own process, or running ahead in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from forerun.core.tensors import torch
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.draft_process import DraftProcess
from forerun.drafters.draft_worker import WorkerSettings
from forerun.drafters.run_ahead import load_run_ahead
from forerun.errors import UnreadableModel
from forerun.models.loading import load_model, load_tokenizer
from forerun.models.runner import Runner
from forerun.models.tokenization import check_same_vocabulary

DraftModel: TypeAlias = ModelDrafter | DraftProcess

BRANCHES: Final = 3
"""Children per node in the tree of a draft model."""

RUN_AHEAD_SHARE: Final = 4
"""Threads of the engine for each thread of a draft model that runs ahead; each has one at least."""


def load_draft_models(
    paths: Mapping[str, str], target: Runner, tokenizer: Any, *, tree: bool, run_ahead: bool
) -> dict[str, DraftModel]:
    """The draft models by name, on the target's device and with as many slots.

    Those that run ahead take their threads from the engine's.
    """
    for path in paths.values() if tokenizer is not None else ():
        check_same_vocabulary(tokenizer, _draft_tokenizer(path))
    if run_ahead:
        return {name: _start(path, target) for name, path in paths.items()}
    return {
        name: ModelDrafter(_load(path, target), target.vocab_size, branches=BRANCHES if tree else 1)
        for name, path in paths.items()
    }


def _load(path: str, target: Runner) -> Runner:
    model = load_model(path, target.model.dtype, target.model.device)
    return Runner(model, num_slots=target.cache.num_slots, max_length=target.max_length)


def _start(path: str, target: Runner) -> DraftProcess:
    """Start a draft model in a process of its own."""
    total = torch.get_num_threads()
    threads = max(1, total // RUN_AHEAD_SHARE)
    model, cache = target.model, target.cache
    make = partial(
        load_run_ahead,
        path,
        dtype=model.dtype,
        device=str(model.device),
        vocab_size=target.vocab_size,
        num_slots=cache.num_slots,
        max_length=target.max_length,
    )
    process = DraftProcess(WorkerSettings(make, threads))
    torch.set_num_threads(max(1, total - threads))
    return process


def _draft_tokenizer(path: str) -> Any:
    """The tokenizer of a draft model, to compare with the target's."""
    try:
        return load_tokenizer(path)
    except UnreadableModel as error:
        raise UnreadableModel(
            f"the draft model {path} has no tokenizer to compare with the target's:"
            " add its tokenizer's files to that directory"
        ) from error
