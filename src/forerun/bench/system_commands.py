"""The commands that start the built-in systems of a benchmark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final

from forerun.bench.served_model import SPEC_DECODE_METRICS, ServedModel, vllm_server_flags
from forerun.bench.system_names import FORERUN, FORERUN_DRAFT, LLAMA, TRANSFORMERS, VLLM
from forerun.errors import ConfigurationError
from forerun.servers.processes import forerun_command, vllm_command

NUM_DRAFT_TOKENS: Final = 5
"""Draft length of stock vLLM with n-grams or a draft model, as in the examples of its documentation."""

LLAMA_NUM_DRAFT_TOKENS: Final = 2
"""Draft length of llama.cpp's prompt lookup, as llama-cpp-python's documentation recommends for CPUs."""

LLAMA_CONTEXT: Final = 4096
"""Context length of llama.cpp without a `max_length`; its own default is 2048."""

Command = Callable[[ServedModel], Sequence[str]]


def _vllm(model: ServedModel, speculation: dict[str, Any] | None = None) -> list[str]:
    flags = [*SPEC_DECODE_METRICS, "--speculative-config", json.dumps(speculation)] if speculation else []
    return vllm_command(model.path, *vllm_server_flags(model), *flags)


def _ngram(model: ServedModel) -> list[str]:
    return _vllm(
        model,
        {
            "method": "ngram",
            "num_speculative_tokens": NUM_DRAFT_TOKENS,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 1,
        },
    )


def _draft(model: ServedModel) -> list[str]:
    draft = str(model.require_draft("vllm-draft"))
    return _vllm(model, {"method": "draft_model", "model": draft, "num_speculative_tokens": NUM_DRAFT_TOKENS})


def _suffix(model: ServedModel) -> list[str]:
    if find_spec("arctic_inference") is None:
        raise ConfigurationError(
            "vLLM's suffix decoding needs arctic-inference: pip install arctic-inference==0.1.1"
        )
    speculation = {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0}
    return _vllm(model, speculation)


def _forerun(model: ServedModel) -> list[str]:
    return forerun_command(model.path, *vllm_server_flags(model), *SPEC_DECODE_METRICS)


def _forerun_draft(model: ServedModel) -> list[str]:
    draft = str(model.require_draft(FORERUN_DRAFT))
    return forerun_command(
        model.path, "--draft-model", draft, *vllm_server_flags(model), *SPEC_DECODE_METRICS
    )


def _transformers(model: ServedModel, method: str) -> list[str]:
    draft = ["--draft", str(model.require_draft("transformers-assisted"))] if method == "assisted" else []
    command = [
        sys.executable,
        "-m",
        "forerun.bench.hf_server",
        str(model.path),
        "--method",
        method,
        "--dtype",
        model.dtype,
    ]
    return command + draft


def _llama(model: ServedModel, *flags: str) -> list[str]:
    if find_spec("llama_cpp") is None:
        raise ConfigurationError("llama.cpp needs its server: pip install 'llama-cpp-python[server]'")
    if model.gguf is None:
        raise ConfigurationError("llama.cpp needs the model as a GGUF file: give --gguf")
    threads = str(len(os.sched_getaffinity(0)))
    size = [
        "--n_ctx",
        str(model.max_length or LLAMA_CONTEXT),
        "--n_threads",
        threads,
        "--n_threads_batch",
        threads,
    ]
    queue = ["--interrupt_requests", "false"]  # by default a new request aborts the running one
    return [sys.executable, "-m", "llama_cpp.server", "--model", str(model.gguf), *size, *queue, *flags]


COMMANDS: Final[dict[str, tuple[str, Command]]] = {
    FORERUN: (VLLM, _forerun),
    FORERUN_DRAFT: (VLLM, _forerun_draft),
    VLLM: (VLLM, _vllm),
    "vllm-ngram": (VLLM, _ngram),
    "vllm-draft": (VLLM, _draft),
    "vllm-suffix": (VLLM, _suffix),
    TRANSFORMERS: (TRANSFORMERS, lambda model: _transformers(model, "baseline")),
    "transformers-assisted": (TRANSFORMERS, lambda model: _transformers(model, "assisted")),
    "transformers-lookup": (TRANSFORMERS, lambda model: _transformers(model, "lookup")),
    LLAMA: (LLAMA, lambda model: _llama(model, "--logits_all", "false")),
    "llama.cpp-lookup": (
        LLAMA,
        lambda model: _llama(
            model,
            "--draft_model",
            "prompt-lookup-decoding",
            "--draft_model_num_pred_tokens",
            str(LLAMA_NUM_DRAFT_TOKENS),
        ),
    ),
}
"""The baseline and the command of each built-in system."""
