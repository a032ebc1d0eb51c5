"""The installed vLLM has every name of the contract, and a vLLM without one is rejected."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from forerun.engines.vllm import contract
from forerun.errors import UnsupportedEngine


def test_the_installed_vllm_matches_the_contract() -> None:
    contract.check()


def test_another_version_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_version", lambda: "0.33.0")
    with pytest.raises(UnsupportedEngine, match=r"0\.32.*0\.33\.0"):
        contract.check()


@pytest.mark.parametrize(
    ("table", "path", "names", "message"),
    [
        ("CALLS", "vllm.v1.sample.sampler.Sampler.forward", ("self", "hidden"), "takes self, logits"),
        ("CALLS", "vllm.v1.sample.sampler.Sampler.backward", ("self",), "does not exist"),
        ("CALLS", "vllm.v9.missing.function", ("self",), "does not exist"),
        ("FIELDS", "vllm.v1.outputs.SamplerOutput", ("absent_name",), "has no absent_name"),
        ("FIELDS", "vllm.v1.outputs.LogprobsTensors", ("absent_name",), "has no absent_name"),
        ("FIELDS", "vllm.v1.outputs.Missing", ("field",), "does not exist"),
        ("ATTRIBUTES", "vllm.v1.core.sched.scheduler.Scheduler", ("absent_name",), "has no absent_name"),
        ("ATTRIBUTES", "vllm.v1.core.sched.scheduler.Missing", ("field",), "does not exist"),
    ],
)
def test_a_missing_or_changed_name_is_rejected(
    monkeypatch: pytest.MonkeyPatch, table: str, path: str, names: tuple[str, ...], message: str
) -> None:
    monkeypatch.setitem(getattr(contract, table), path, names)
    with pytest.raises(UnsupportedEngine, match=message):
        contract.check()


def test_pipeline_parallelism_is_rejected() -> None:
    one, two = (
        SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=num)) for num in (1, 2)
    )
    contract.check_config(one)
    with pytest.raises(UnsupportedEngine, match=r"2 pipeline stages.*--tensor-parallel-size"):
        contract.check_config(two)
