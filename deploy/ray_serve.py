# ruff: noqa: INP001
"""forerun's scheduler in Ray Serve LLM. This has not been run on a cluster, nor with Ray at all.

    serve run ray_serve:build_app model=Qwen/Qwen3-0.6B accelerator=L4

Every node needs forerun, vLLM 0.32 and `ray[serve]`. Ray's extra `llm` pins a version of vLLM of its own
(0.29 in Ray 2.60), and forerun refuses all but 0.32, so install vLLM beside Ray instead of that extra.
Whether the vLLM engine of Ray 2.60 works with vLLM 0.32 has not been checked.

Ray exports vLLM's metrics under names of its own, with `_` in place of `:`, and does not export forerun's.
The dashboard and the alert rules in this folder are for `forerun serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ray.serve.llm import LLMConfig, build_openai_app

from forerun import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments, visible_cores
from forerun.engines.vllm.runner_choice import RUNNER_VARIABLE

if TYPE_CHECKING:
    from ray.serve import Application

SPECULATION: Final = SpeculationConfig()
"""forerun's settings; the engine reads them from `additional_config`."""


def llm_config(model: str, accelerator: str) -> LLMConfig:
    """A deployment whose engine arguments are those of `forerun serve` on a GPU.

    The model runner is given, because the node that builds the application may have no GPU. The environment
    variables reach all processes of a replica: the runner, and the number of cores, by which the scheduler
    finds the step costs that the worker has profiled.
    """
    return LLMConfig(
        model_loading_config={"model_id": model, "model_source": model},
        accelerator_type=accelerator,
        engine_kwargs={
            **engine_arguments(SPECULATION, runner="v2"),
            "per_request_spec_decode_metrics": "summary",
        },
        runtime_env={"env_vars": {RUNNER_VARIABLE: "1", "FORERUN_CORES": visible_cores()}},
        deployment_config={"num_replicas": 1},
    )


def build_app(arguments: dict[str, str]) -> Application:
    """The application, for `serve run` with the arguments `model` and `accelerator`."""
    return build_openai_app({"llm_configs": [llm_config(arguments["model"], arguments["accelerator"])]})
