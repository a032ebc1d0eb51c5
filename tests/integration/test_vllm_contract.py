"""Every name of vLLM's that we lean on is there, and a vLLM without one is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from forerun.engines.vllm import contract
from forerun.errors import UnsupportedEngine


def test_this_vllm_is_the_one_we_know() -> None:
    contract.check()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_version", lambda: "0.33.0")
    with pytest.raises(UnsupportedEngine, match=r"works inside vLLM 0\.32.*version 0\.33\.0"):
        contract.check()


@pytest.mark.parametrize(
    ("table", "path", "names", "message"),
    [
        ("CALLS", "vllm.v1.sample.sampler.Sampler.forward", ("self", "hidden"), "takes self, logits"),
        ("CALLS", "vllm.v1.sample.sampler.Sampler.backward", ("self",), "is not there"),
        ("CALLS", "vllm.v9.nowhere.function", ("self",), "is not there"),
        ("FIELDS", "vllm.v1.outputs.SamplerOutput", ("colour",), "has no colour"),
        ("FIELDS", "vllm.v1.outputs.LogprobsTensors", ("colour",), "has no colour"),
        ("FIELDS", "vllm.v1.outputs.Nothing", ("colour",), "is not there"),
        ("ATTRIBUTES", "vllm.v1.core.sched.scheduler.Scheduler", ("colour",), "has no colour"),
        ("ATTRIBUTES", "vllm.v1.core.sched.scheduler.Nothing", ("colour",), "is not there"),
    ],
)
def test_a_name_that_is_gone_or_changed_is_refused(
    monkeypatch: pytest.MonkeyPatch, table: str, path: str, names: tuple[str, ...], message: str
) -> None:
    monkeypatch.setitem(getattr(contract, table), path, names)
    with pytest.raises(UnsupportedEngine, match=message):
        contract.check()


def test_pipelines_are_refused() -> None:
    one, two = (
        SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=num)) for num in (1, 2)
    )
    contract.check_config(one)
    with pytest.raises(UnsupportedEngine, match=r"2 pipeline stages .* use --tensor-parallel-size"):
        contract.check_config(two)
