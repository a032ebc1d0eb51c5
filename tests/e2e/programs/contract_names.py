"""Generates with forerun in vLLM while its use of private names is recorded, then renames the live ones.

Arguments: target model, draft model, and the mode: "v1", or "sync" or "async" for the V2 model runner on the
bench. In the mode "async" there is no draft model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from e2e.programs.engine_output import Engine, answer
from vllm_contract.recorder import Recorder, install, overrides

NOT_RECORDED = ("forerun.engines.local", "forerun.engines.vllm.contract")
RECORDED = ("forerun.engines", "forerun.core.jit", "forerun.core.kernel_stamp")
PROMPT = {"prompt_token_ids": [5, 6, 7, 8] * 6}


def is_recorded(module: str) -> bool:
    """Whether a module handles objects of the libraries."""
    return module.startswith(RECORDED) and not module.startswith(NOT_RECORDED)


def sampling_params(mode: str) -> list[Any]:
    """Parameters that lead through the different parts of the sampler."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    grammar = StructuredOutputsParams(regex="(yes|no), this is how it ends")
    of_one_runner: dict[str, Any] = (
        {"temperature": 1.0, "extra_args": {"forerun_lenience": 0.5}}
        if mode == "v1"
        else {"temperature": 0, "logprob_token_ids": [3, 4]}
    )
    settings: tuple[dict[str, Any], ...] = (
        {"temperature": 0},
        {"temperature": 0.8, "seed": 1, "top_p": 0.9, "top_k": 50},
        {"temperature": 1.0},
        {"temperature": 0.7, "seed": 2},
        of_one_runner,
        {"temperature": 0, "repetition_penalty": 1.1},
        {"temperature": 0, "min_tokens": 8, "logprobs": 2},
        {"temperature": 0.9, "min_p": 0.05, "logit_bias": {3: 1.0}},
        {"temperature": 0, "structured_outputs": grammar},
    )
    return [SamplingParams(max_tokens=16, **each) for each in settings]


def generate(llm: Any, params: list[Any]) -> None:
    """Generate for every setting alone, and for all in one batch."""
    for batch in (*([each] for each in params), params):
        llm.generate([PROMPT] * len(batch), batch, use_tqdm=False)
    llm.get_metrics()


def rename_live_names(llm: Any, params: Any, mode: str) -> dict[str, str]:
    """The error for every live name of the contract, after it was removed from its object."""
    from forerun.engines.vllm import contract
    from forerun.engines.vllm.contract import invariant_mode, private_names
    from vllm_contract.renaming import live_messages

    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    worker = engine.model_executor.driver_worker.worker
    engine.add_request("live", PROMPT, params)
    request = scheduler.requests[next(iter(scheduler.requests))]
    objects = {
        **_objects(scheduler, private_names.SCHEDULER_OBJECTS),
        **_objects(scheduler.vllm_config, private_names.CONFIG_OBJECTS),
        **_objects(request, private_names.REQUEST_OBJECTS),
        **_objects(worker, private_names.WORKER_OBJECTS),
        **_objects(engine.input_processor, private_names.FRONT_END_OBJECTS),
        **_members(worker.model_runner.model.modules(), invariant_mode.INVARIANT.live),
        **(_v1_objects(worker) if mode == "v1" else _v2_objects(worker)),
    }
    run_checks: tuple[Callable[[], None], ...] = (
        lambda: contract.check_scheduler(scheduler),
        lambda: contract.check_request(request),
        lambda: contract.check_worker(worker),
        lambda: contract.check_loaded_worker(worker),
        lambda: contract.check_invariant_model(worker.model_runner.model),
        lambda: contract.check_input_processor(engine.input_processor),
    )
    found: dict[str, str] = {}
    groups = contract.V1 if mode == "v1" else contract.V2
    for names in (*contract.COMMON, *groups):
        found |= live_messages(names, objects, run_checks)
    for run in run_checks:
        run()  # every name is back
    return found


def _v1_objects(worker: Any) -> dict[str, Any]:
    from forerun.engines.vllm.contract import v1_runner

    processors = worker.model_runner.input_batch.logitsprocs.all
    return {
        **_objects(worker, v1_runner.V1_RUNNER_OBJECTS),
        **_members(processors, v1_runner.LOGITS_PROCESSORS.live),
    }


def _members(objects: Iterable[Any], kinds: Iterable[str]) -> dict[str, Any]:
    found = list(objects)
    return {kind: next(each for each in found if _is_a(each, kind)) for kind in kinds}


def _v2_objects(worker: Any) -> dict[str, Any]:
    from forerun.engines.vllm.contract import draft_trees, v2_runner

    of_runner = v2_runner.V2_RUNNER_OBJECTS | v2_runner.V2_DRAFT_MODEL_OBJECTS
    return _objects(worker, of_runner | draft_trees.DRAFT_TREES_OBJECTS)


def _objects(root: Any, kinds: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for attribute_path, kind in kinds.items():
        obj = root
        for name in filter(None, attribute_path.split(".")):
            obj = getattr(obj, name)
        found[kind] = obj
    return found


def _is_a(obj: Any, kind: str) -> bool:
    from forerun.engines.vllm.contract import checks

    return isinstance(obj, checks.find(kind))


def main(target: str, draft: str, mode: str) -> None:
    """Generate, then print the recorded names and the errors."""
    recorder = Recorder()
    install(recorder, is_recorded)
    from forerun.config import SpeculationConfig
    from forerun.engines.vllm.launch import engine_arguments

    if mode == "v1":
        speculation = engine_arguments(SpeculationConfig(draft_model=draft, invariant=True), runner="v1")
    else:
        config = SpeculationConfig(draft_model=draft if mode == "sync" else None, max_draft=8, adaptive=False)
        speculation = engine_arguments(config, runner="v2", asynchronous=mode == "async")
        speculation["kv_cache_memory_bytes"] = 64 << 20
    llm = Engine(target, max_model_len=256, max_num_seqs=16, block_size=32, **speculation).llm
    params = sampling_params(mode)
    generate(llm, params)
    answer(
        {
            "accesses": sorted({*recorder.accesses, *overrides()}),
            "calls": sorted(recorder.calls),
            "unexecuted": sorted(recorder.sites - recorder.executed),
            "renamed": {} if mode == "async" else rename_live_names(llm, params[0], mode),
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
