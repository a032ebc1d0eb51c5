"""The worker records the likeliest next tokens at the rows of the requests that the scheduler names."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from forerun.engines.vllm.logits_recorder import LogitsRecorder
from forerun.engines.vllm.step_report import StepReport, attach_report, read_report

LOGITS = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
NAMES, NUM_ROWS = ["a", "b", "c"], [1, 3, 2]


def test_only_the_rows_of_wanted_requests_are_recorded() -> None:
    recorder = LogitsRecorder()
    recorder.begin(frozenset({"b", "gone"}))
    recorder.record(LOGITS, NAMES, NUM_ROWS)
    report = recorder.take()
    assert report is not None
    ((name, (tokens, probs)),) = report.by_request().items()
    assert name == "b"
    expected = LOGITS[1:4].softmax(-1).topk(8)
    assert (tokens == expected.indices.numpy()).all()
    assert np.allclose(probs, expected.values.numpy(), rtol=1e-5)
    assert recorder.take() is None


def test_nothing_is_recorded_without_a_request_that_wants_it() -> None:
    recorder = LogitsRecorder()
    recorder.begin(frozenset({"gone"}))
    recorder.record(LOGITS, NAMES, NUM_ROWS)
    assert recorder.take() is None
    recorder.begin(frozenset({"a"}))
    recorder.record(LOGITS[:5], NAMES, NUM_ROWS)  # the rows of a batch that is sampled on several ranks
    assert recorder.take() is None


def test_the_logits_that_a_model_computes_are_recorded_unchanged() -> None:
    class Model(torch.nn.Module):
        def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * 2

    model, recorder = Model(), LogitsRecorder()
    recorder.begin(frozenset(NAMES))
    with recorder.recording(model, NAMES, NUM_ROWS):
        logits = model.compute_logits(LOGITS)
        logits.fill_(0)  # samplers work in place
    model.compute_logits(LOGITS[:2])
    report = recorder.take()
    assert report is not None
    rows = report.by_request()
    assert [len(rows[name][0]) for name in NAMES] == NUM_ROWS
    assert (rows["c"][0][:, 0] == LOGITS[4:].argmax(-1).numpy()).all()


def test_reports_travel_with_the_output() -> None:
    recorder = LogitsRecorder()
    recorder.begin(frozenset({"a"}))
    recorder.record(LOGITS, NAMES, NUM_ROWS)
    output: Any = SimpleNamespace()
    attach_report(output, StepReport(top_tokens=recorder.take()))
    report = read_report(pickle.loads(pickle.dumps(output))).top_tokens
    assert report is not None
    assert report.names == ("a",)
    attach_report(empty := SimpleNamespace(), StepReport())
    assert vars(empty) == {}
    assert read_report(empty).top_tokens is None
