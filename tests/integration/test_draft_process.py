"""A draft model in its own process: same output, drafts in advance, no harm when the process is killed."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forerun import LLM, SpeculationConfig
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.draft_process import DraftProcess
from forerun.drafters.draft_worker import WorkerSettings
from forerun.drafters.run_ahead import load_run_ahead
from forerun.errors import ConfigurationError
from forerun.models.runner import Runner
from forerun.types import RequestView, SamplingParams
from integration.local_models import VOCAB, make_draft_model

ALL_SAMPLING: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 3}]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def draft_directory(tiny_llama: Any, tmp_path: Path) -> Path:
    make_draft_model(tiny_llama, 0.02).save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


@pytest.fixture
def process(draft_directory: Path) -> Iterator[DraftProcess]:
    found = DraftProcess(settings(draft_directory), max_restart_interval=0.1)
    yield found
    found.close()


def settings(directory: Path) -> WorkerSettings:
    make = partial(
        load_run_ahead,
        str(directory),
        dtype=torch.float32,
        device="cpu",
        vocab_size=VOCAB,
        num_slots=4,
        max_length=128,
    )
    return WorkerSettings(make, threads=1)


def test_its_drafts_are_those_of_the_model_in_this_process(tiny_llama: Any, process: DraftProcess) -> None:
    model = make_draft_model(tiny_llama, 0.02)
    plain = ModelDrafter(Runner(model, num_slots=4, max_length=128), VOCAB)
    text = [1, 2, 3]
    for _ in range(8):
        view = RequestView("r", text, num_prompt=3, sampling=GREEDY)
        (found,), (expected,) = process.propose([view], [3]), plain.propose([view], [4])
        assert 0 < len(found) <= 3
        assert found.tokens.tolist() == expected.tokens[: len(found)].tolist()
        text += expected.tokens[: len(found) + 1].tolist()
        time.sleep(0.05)  # in which the next drafts are prepared
    assert process.stats.num_hits > 0
    sampled = RequestView("s", [4, 5], sampling=SamplingParams(temperature=1.0))
    (draft,) = process.propose([sampled], [2])
    assert draft.sampled.all()
    assert float(np.asarray(draft.q[-1].probs).sum()) == pytest.approx(1.0)  # type: ignore[union-attr]
    process.forget("r")
    process.forget("unknown")
    assert len(process.propose([RequestView("r", [1, 2, 3], sampling=GREEDY)], [3])[0]) == 3


def test_a_killed_process_is_replaced(process: DraftProcess) -> None:
    view = RequestView("r", [1, 2, 3], sampling=GREEDY)
    (before,) = process.propose([view], [3])
    for number in (1, 2):
        os.kill(process.pid, signal.SIGKILL)
        end = time.monotonic() + 60
        drafts = [process.propose([view], [3])[0]]
        while not len(drafts[-1]):
            assert time.monotonic() < end
            time.sleep(0.05)
            drafts += process.propose([view], [3])
        assert drafts[-1].tokens.tolist() == before.tokens.tolist(), "the new process was told the whole text"
        assert process.num_restarts >= number


def test_a_process_that_does_not_answer_is_replaced(draft_directory: Path) -> None:
    process = DraftProcess(settings(draft_directory), timeout=0.5, max_restart_interval=0.1)
    os.kill(process.pid, signal.SIGSTOP)
    view = RequestView("r", [1, 2, 3], sampling=GREEDY)
    began = time.monotonic()
    assert len(process.propose([view], [3])[0]) == 0
    assert time.monotonic() - began < 5
    stopped = process.pid
    while process.pid == stopped:
        process.propose([view], [3])
        time.sleep(0.05)
    process.close()


def test_a_model_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="before its model was loaded"):
        DraftProcess(settings(tmp_path / "nothing"))


def test_an_llm_whose_draft_model_is_killed_has_the_same_output(
    tiny_llama: Any, draft_directory: Path
) -> None:
    prompts = [[1, 2, 3], [5, 6], [7, 8, 9]]
    plain = LLM(copy.deepcopy(tiny_llama), "none", max_length=128)
    threads = torch.get_num_threads()
    config = SpeculationConfig(run_ahead=True, adaptive=False, max_draft=4)
    llm = LLM(copy.deepcopy(tiny_llama), f"model:{draft_directory}", max_length=128, config=config)
    process = llm._draft_models["model"]
    assert isinstance(process, DraftProcess)
    try:
        for sampling in ALL_SAMPLING:
            expected = plain.generate(prompts, max_tokens=64, ignore_end=True, **sampling)
            num_updates = 0
            for update in llm.stream(prompts, max_tokens=64, ignore_end=True, **sampling):
                num_updates += 1
                if num_updates % 20 == 5:
                    with suppress(ProcessLookupError):  # it is dead already
                        os.kill(process.pid, signal.SIGKILL)
                if update.result is not None:
                    assert update.result.error is None
                    texts = [each.token_ids for each in expected]
                    assert update.result.token_ids in texts
            assert num_updates > 20
    finally:
        process.close()
        torch.set_num_threads(threads)
