"""Every private name that the contract lists is checked, and every one that forerun uses is listed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from e2e.engines import make_llamas, run_program
from forerun.core.jit import NUMBA_DISPATCHER_NAMES, compiled, stamp_by_content
from forerun.engines.vllm import contract
from forerun.engines.vllm.contract.private_names import PrivateNames
from forerun.errors import UnsupportedEngine
from v2_bench.models import make_models
from v2_bench.processes import bench_environment
from vllm_contract import renaming
from vllm_contract.listing import Listing, unlisted_accesses, unlisted_calls
from vllm_contract.recorder import Recorder, install
from vllm_contract.source_scan import SOURCE, hidden_names, unknown_names, unlisted_imports, unused_names

pytestmark = pytest.mark.filterwarnings("default")

CODE = [file for file in sorted(SOURCE.rglob("*.py")) if file.parent.name != "contract"]
PLUGIN_CODE = [file for file in CODE if "vllm" in file.parts]
VOCAB_SIZE = 49152

Renaming = Callable[[], AbstractContextManager[None]]


def static_renamings(names: PrivateNames) -> dict[str, Renaming]:
    """How to rename every name that is checked without an engine, by its path."""
    found: dict[str, Renaming] = {path: partial(renaming.without_path, path) for path in names.paths}
    for path, parameters in names.calls.items():
        found[path] = partial(renaming.without_path, path)
        for parameter in sorted(set(parameters) - {"self", "*"}):
            found[f"{path}({parameter})"] = partial(renaming.without_parameter, path, parameter)
    for path, fields in names.fields.items():
        found |= {f"{path}.{each}": partial(renaming.without_field, path, each) for each in fields}
    for path, assigned in names.assigned.items():
        found |= {f"{path}.{each}": partial(renaming.without_assignment, path, each) for each in assigned}
    return found | {path: partial(renaming.without_path, path) for path in names.live}


STATIC = [(names, path, how) for names in contract.EVERY for path, how in static_renamings(names).items()]

GROUPS = {"v1": (*contract.COMMON, *contract.V1), "sync": (*contract.COMMON, *contract.V2)}
"""The names that are checked on the live objects of an engine, by the mode of the engine."""

LIVE = [
    (mode, f"{kind}.{name}")
    for mode, groups in GROUPS.items()
    for names in groups
    for kind, live in names.live.items()
    for name in live
]


@pytest.fixture(scope="module")
def engines(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By mode, the names that a running engine used, and the errors for those renamed on its live objects."""
    folder = tmp_path_factory.mktemp("contract")
    models = make_llamas(folder, vocab_size=VOCAB_SIZE, heads=1)
    for model in models:
        for file in smollm2.glob("tokenizer*"):
            shutil.copy(file, model)
    environment = {"XDG_CACHE_HOME": str(folder), "VLLM_USE_V2_MODEL_RUNNER": "0"}
    # With an empty cache, vLLM inspects the model's class in a process of its own, which imports vLLM.
    environment["VLLM_CACHE_ROOT"] = str(Path.home() / ".cache" / "vllm")
    found = {"v1": run_program("contract_names", *models, "v1", **environment)}
    (folder / "bench").mkdir()
    bench = make_models(folder / "bench")
    environment = {**environment, **bench_environment(), "VLLM_CPU_KVCACHE_SPACE": "1"}
    for mode in ("sync", "async"):
        found[mode] = run_program("contract_names", bench.target, bench.draft, mode, **environment)
    return found


@pytest.fixture(scope="module")
def engine(engines: Any) -> Any:
    """The names that any engine used, and the lines that none executed."""
    unexecuted = [{tuple(site) for site in each["unexecuted"]} for each in engines.values()]
    return {
        "accesses": [access for each in engines.values() for access in each["accesses"]],
        "calls": [call for each in engines.values() for call in each["calls"]],
        "unexecuted": set.intersection(*unexecuted),
    }


@pytest.fixture(scope="module")
def listing() -> Listing:
    return Listing(contract.EVERY)


def test_the_installed_vllm_matches_the_contract() -> None:
    contract.check(contract.EVERY)


@pytest.mark.parametrize("found", ["0.33.0", "0.320.0", "unknown"])
def test_another_version_is_rejected(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(contract.checks, "installed_version", lambda: found)
    with pytest.raises(UnsupportedEngine, match=rf"0\.32.*{found}"):
        contract.check()


@pytest.mark.parametrize(("names", "path", "rename"), STATIC, ids=[path for _, path, _ in STATIC])
def test_a_renamed_class_function_parameter_or_field_is_an_error(
    names: PrivateNames, path: str, rename: Renaming
) -> None:
    with rename(), pytest.raises(UnsupportedEngine) as raised:
        contract.check((names,))
    owner, _, parameter = path.rstrip(")").partition("(")
    last = owner.rpartition(".")[2]
    assert f"{owner} " in str(raised.value) or f"{owner.removesuffix(f'.{last}')} has no {last}" in str(
        raised.value
    )
    assert f"{parameter}_renamed" in str(raised.value) or not parameter


@pytest.mark.parametrize(("mode", "path"), LIVE)
def test_a_renamed_attribute_of_a_live_object_is_an_error(engines: Any, mode: str, path: str) -> None:
    kind, _, name = path.rpartition(".")
    assert f"{kind} has no {name}" in engines[mode]["renamed"][path]


@pytest.mark.parametrize("name", NUMBA_DISPATCHER_NAMES)
def test_a_renamed_attribute_of_a_kernel_is_an_error(name: str) -> None:
    dispatcher: Any = compiled(lambda x: x)
    with renaming.without(dispatcher, name), pytest.raises(AttributeError, match=rf"numba .*{name}"):
        stamp_by_content(dispatcher)


def test_every_attribute_that_the_engine_accesses_is_listed(engine: Any, listing: Listing) -> None:
    assert len(engine["accesses"]) > 100
    assert unlisted_accesses(engine["accesses"], listing) == []


def test_every_function_and_keyword_that_the_engine_calls_is_listed(engine: Any, listing: Listing) -> None:
    assert len(engine["calls"]) > 20
    assert unlisted_calls(engine["calls"], listing) == []


def test_names_on_lines_that_were_not_executed_are_listed(engine: Any, listing: Listing) -> None:
    assert unknown_names(engine["unexecuted"], CODE, listing) == []


def test_every_import_is_listed(listing: Listing) -> None:
    assert unlisted_imports(CODE, listing) == []


def test_no_default_hides_a_renamed_attribute() -> None:
    assert hidden_names(PLUGIN_CODE) == []


def test_every_listed_name_is_used(listing: Listing) -> None:
    assert unused_names(CODE, listing) == []


SABOTAGE = """
import os
from dataclasses import replace
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

def read(output):
    return output.sampled_token_ids, output.logprobs, os.sep

def change(output):
    return replace(output, logprobs=None)

def build():
    return ModelRunnerOutput(req_ids=[], req_id_to_index={}, logprobs=None)

def guarded(output):
    return getattr(output, "renamed_attribute", None), hasattr(output, "other"), hasattr(os, "sep")

def not_executed(output):
    return output.sampled_token_ids, output.renamed_attribute, os.path
"""


def test_the_scan_finds_unlisted_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: Listing
) -> None:
    (tmp_path / "sabotaged.py").write_text(SABOTAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sabotaged", raising=False)
    recorder = Recorder()
    finder = install(recorder, "sabotaged".__eq__)
    try:
        import sabotaged  # type: ignore[import-not-found]
    finally:
        sys.meta_path.remove(finder)
    output = sabotaged.build()
    sabotaged.read(output)
    sabotaged.change(output)
    sabotaged.guarded(output)
    kind = "vllm.v1.outputs.ModelRunnerOutput"
    assert sorted(unlisted_accesses(recorder.accesses, listing)) == [
        f"{kind}.logprobs",
        f"{kind}.other",
        f"{kind}.renamed_attribute",
    ]
    assert unlisted_calls(recorder.calls, listing) == [f"{kind}(logprobs)"]
    files = [tmp_path / "sabotaged.py"]
    unexecuted = recorder.sites - recorder.executed
    assert {site[3] for site in unexecuted} == {"sampled_token_ids", "renamed_attribute", "path"}
    assert unknown_names(unexecuted, files, listing) == ["sabotaged:19 renamed_attribute"]
    assert unlisted_imports(files, listing) == ["sabotaged.py: vllm.v1.outputs.KVConnectorOutput"]
    assert len(hidden_names(files)) == 2


def test_a_listed_name_that_is_not_used_is_found() -> None:
    listing = Listing([PrivateNames(live={"vllm.v1.outputs.SamplerOutput": ("not_in_any_file",)})])
    assert "not_in_any_file" in unused_names(CODE, listing)


def test_another_model_runner_is_rejected() -> None:
    worker = SimpleNamespace(model_runner=SimpleNamespace(), use_v2_model_runner=True, vllm_config=None)
    with pytest.raises(UnsupportedEngine, match=r"V1 or V2.*SimpleNamespace"):
        contract.check_worker(worker)
