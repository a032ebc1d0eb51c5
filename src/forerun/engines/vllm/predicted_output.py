"""Predicted outputs in vLLM's front end: OpenAI's parameter `prediction`, and the usage counts.

A chat completion's `prediction` becomes the option `forerun_prediction` of the request, which completions
give themselves in `vllm_xargs`. The front end tokenizes it for the drafter. Afterwards `usage` says how many
of its tokens the output had where they were expected, and how many it did not have.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache, wraps
from inspect import signature
from typing import Any, Final

from vllm.exceptions import VLLMValidationError

from forerun.drafters.predicted_output import count_predicted
from forerun.engines.vllm.request_options import PREDICTION_OPTION

MAX_CHARACTERS: Final = 16
MAX_TOKENS: Final = 2
"""The most characters and tokens of a prediction, per token of the model's maximum length."""


@cache
def patch_serving() -> None:
    """Let chat completions take predictions, and report predictions in `usage`; once, in a front end.

    These modules are slow to import, and other processes do not need them.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat  # noqa: PLC0415
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion  # noqa: PLC0415

    ChatCompletionRequest.to_sampling_params = _patch_sampling_params(
        ChatCompletionRequest.to_sampling_params
    )
    OpenAIServingChat.chat_completion_full_generator = _patch_chat_generator(
        OpenAIServingChat.chat_completion_full_generator
    )
    OpenAIServingChat.chat_completion_stream_generator = _patch_stream(
        OpenAIServingChat.chat_completion_stream_generator
    )
    OpenAIServingCompletion.request_output_to_completion_response = _patch_completion_response(
        OpenAIServingCompletion.request_output_to_completion_response
    )
    OpenAIServingCompletion.completion_stream_generator = _patch_stream(
        OpenAIServingCompletion.completion_stream_generator
    )


def prediction_text(prediction: Any) -> str:
    """The text of OpenAI's parameter `prediction`: its content is a text, or a list of text parts."""
    if not isinstance(prediction, Mapping) or prediction.get("type") != "content":
        raise _invalid('prediction must be {"type": "content", "content": ...}')
    content = prediction.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise _invalid("prediction.content must be a text or a list of text parts")


def _invalid(message: str) -> VLLMValidationError:
    return VLLMValidationError(message, parameter="prediction")


def _tokens_of(tokenizer: Any, max_length: int, prediction: Any) -> tuple[int, ...]:
    """The tokens of a prediction, given as text or as tokens; none without a tokenizer."""
    if not isinstance(prediction, str):
        return tuple(prediction or ())[: MAX_TOKENS * max_length]
    if tokenizer is None:
        return ()
    text = prediction[: MAX_CHARACTERS * max_length]
    return tuple(tokenizer.encode(text, add_special_tokens=False))[: MAX_TOKENS * max_length]


def _patch_sampling_params(stock: Any) -> Any:
    """Pass the prediction of a chat completion on as an option of the request."""

    @wraps(stock)
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        prediction = (self.model_extra or {}).get("prediction")
        if prediction is not None:
            self.vllm_xargs = {**(self.vllm_xargs or {}), PREDICTION_OPTION: prediction_text(prediction)}
        return stock(self, *args, **kwargs)

    return to_sampling_params


def patch_process_inputs(stock: Any) -> Any:
    """Replace the text of a prediction by its tokens.

    They replace it in the request's own options too, where `_prediction_of` finds them.
    """

    @wraps(stock)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = stock(self, *args, **kwargs)
        params = request.sampling_params  # none for requests of pooling models
        options = {} if params is None else params.extra_args or {}
        if self._forerun_drafters is not None and PREDICTION_OPTION in options:
            given = options[PREDICTION_OPTION]
            tokens = _tokens_of(self.tokenizer, self.model_config.max_model_len, given)
            vocab_size = self.model_config.get_vocab_size()
            options[PREDICTION_OPTION] = [token for token in tokens if token < vocab_size]
        return request

    return process_inputs


class _Outputs:
    """Keeps the output tokens of a request, which may have several prompts and several choices."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, int], list[int]] = {}

    def add(self, result: Any, prompt: int = 0) -> None:
        """Append the new tokens of a prompt's result."""
        for output in result.outputs:
            self._tokens.setdefault((prompt, output.index), []).extend(output.token_ids)

    async def watch(self, results: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass results on; those of completions come with the number of their prompt."""
        async for each in results:
            if isinstance(each, tuple):
                self.add(each[1], each[0])
            else:
                self.add(each)
            yield each

    def details(self, prediction: Sequence[int]) -> dict[str, int]:
        """The fields of `completion_tokens_details` about a prediction."""
        accepted, rejected = count_predicted(prediction, [*self._tokens.values()])
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}

    def add_to_usage(self, usage: Any, prediction: Sequence[int]) -> None:
        """Add these fields to the usage of a response."""
        from vllm.entrypoints.serve.engine.protocol import CompletionTokenUsageInfo  # noqa: PLC0415

        found = usage.completion_tokens_details
        details = {} if found is None else found.model_dump()
        usage.completion_tokens_details = CompletionTokenUsageInfo(**details | self.details(prediction))


def _prediction_of(serving: Any, request: Any) -> tuple[int, ...]:
    """The tokens of a request's prediction."""
    given = (request.vllm_xargs or {}).get(PREDICTION_OPTION)
    return _tokens_of(serving.renderer.tokenizer, serving.model_config.max_model_len, given)


def _patch_chat_generator(stock: Any) -> Any:
    """Add the counts to the usage of a chat completion."""

    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse  # noqa: PLC0415

    @wraps(stock)
    async def generate(self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any) -> Any:
        if not (prediction := _prediction_of(self, request)):
            return await stock(self, request, result_generator, *args, **kwargs)
        outputs = _Outputs()
        response = await stock(self, request, outputs.watch(result_generator), *args, **kwargs)
        if isinstance(response, ChatCompletionResponse):
            outputs.add_to_usage(response.usage, prediction)
        return response

    return generate


def _patch_completion_response(stock: Any) -> Any:
    """Add the counts to the usage of a completion."""

    @wraps(stock)
    def respond(self: Any, final_res_batch: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = stock(self, final_res_batch, request, *args, **kwargs)
        if prediction := _prediction_of(self, request):
            outputs = _Outputs()
            for prompt, result in enumerate(final_res_batch):
                outputs.add(result, prompt)
            outputs.add_to_usage(response.usage, prediction)
        return response

    return respond


def _patch_stream(stock: Any) -> Any:
    """Add the counts to the last chunk of a stream, which has the usage and no choices."""
    find_arguments = signature(stock).bind

    @wraps(stock)
    async def generate(*args: Any, **kwargs: Any) -> Any:
        given = find_arguments(*args, **kwargs)
        prediction = _prediction_of(given.arguments["self"], given.arguments["request"])
        outputs = _Outputs()
        if prediction:
            results = given.arguments["result_generator"]
            given.arguments["result_generator"] = outputs.watch(results)
        async for line in stock(*given.args, **given.kwargs):
            yield _with_details(line, outputs, prediction) if prediction else line

    return generate


def _with_details(line: str, outputs: _Outputs, prediction: Sequence[int]) -> str:
    """A line of a stream, with the counts if it has the final usage."""
    if '"choices":[]' not in line:
        return line
    chunk = json.loads(line.removeprefix("data: "))
    usage = chunk.get("usage")
    if not usage:
        return line
    details = usage.get("completion_tokens_details") or {}
    usage["completion_tokens_details"] = details | outputs.details(prediction)
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
