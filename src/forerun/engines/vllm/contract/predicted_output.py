"""The private names that predicted outputs use in the front end of a server."""

from __future__ import annotations

from typing import Final

from forerun.engines.vllm.contract.private_names import PrivateNames

_CHAT: Final = "vllm.entrypoints.openai.chat_completion"
_COMPLETION: Final = "vllm.entrypoints.openai.completion.serving.OpenAIServingCompletion"

PREDICTED_OUTPUT: Final = PrivateNames(
    paths=(
        f"{_CHAT}.protocol.ChatCompletionRequest.model_extra",
        "vllm.v1.engine.EngineCoreRequest.sampling_params",
    ),
    calls={
        f"{_CHAT}.protocol.ChatCompletionRequest.to_sampling_params": ("self",),
        f"{_CHAT}.serving.OpenAIServingChat.chat_completion_full_generator": (
            "self",
            "request",
            "result_generator",
        ),
        f"{_CHAT}.serving.OpenAIServingChat.chat_completion_stream_generator": (
            "self",
            "request",
            "result_generator",
        ),
        f"{_COMPLETION}.request_output_to_completion_response": ("self", "final_res_batch", "request"),
        f"{_COMPLETION}.completion_stream_generator": (
            "self",
            "request",
            "*",
            "result_generator",
        ),
        "vllm.entrypoints.serve.engine.protocol.CompletionTokenUsageInfo.model_dump": ("self",),
    },
    fields={
        f"{_CHAT}.protocol.ChatCompletionResponse": ("usage",),
        "vllm.entrypoints.serve.engine.protocol.UsageInfo": ("completion_tokens_details",),
    },
    assigned={
        "vllm.entrypoints.generate.base.serving.GenerateBaseServing": ("renderer",),
        "vllm.entrypoints.serve.engine.serving.BaseServing": ("model_config",),
    },
)
"""Predicted outputs in the front end of a server; other processes do not import these modules."""
