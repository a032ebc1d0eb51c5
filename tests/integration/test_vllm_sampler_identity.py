"""Our sampler for vLLM, with a plain sampler that is easy to see through: what is kept, what is untouched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from forerun.config import SpeculationConfig
from forerun.engines.vllm.sampler import SpeculativeSampler

VOCAB = 8


class Plain:
    """Says the likeliest token, draws once from every generator it is given, and remembers what it saw."""

    def __init__(self) -> None:
        self.drawn: list[list[int]] = []
        self.num_rows: list[int] = []
        self.temperatures: list[Any] = []
        self.outputs: list[list[list[int]]] = []

    @staticmethod
    def greedy_sample(logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(dim=-1)

    def __call__(self, logits: torch.Tensor, sampling: SamplingMetadata) -> SamplerOutput:
        self.drawn.append([generator.initial_seed() for generator in sampling.generators.values()])
        self.num_rows.append(len(logits))
        self.temperatures.append(sampling.temperature)
        self.outputs.append([list(output) for output in sampling.output_token_ids])
        tokens = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        logprobs = LogprobsTensors(tokens, logits.gather(1, tokens.long()), tokens[:, 0])
        wanted = sampling.max_num_logprobs is not None
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs if wanted else None)


def sampling(num: int, outputs: list[list[int]], **changed: Any) -> SamplingMetadata:
    values: dict[str, Any] = {
        "temperature": torch.ones(num),
        "all_greedy": False,
        "all_random": True,
        "top_p": None,
        "top_k": None,
        "generators": {},
        "max_num_logprobs": None,
        "no_penalties": True,
        "prompt_token_ids": None,
        "frequency_penalties": torch.zeros(num),
        "presence_penalties": torch.zeros(num),
        "repetition_penalties": torch.ones(num),
        "output_token_ids": outputs,
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    return SamplingMetadata(**values | changed)


def run(
    guesses: list[list[int]], target: list[list[int]], **changed: Any
) -> tuple[SamplerOutput, Plain, list[list[int]]]:
    """Sample where the target says these tokens at the rows of each request."""
    logits = torch.nn.functional.one_hot(torch.tensor([t for row in target for t in row]), VOCAB).float()
    metadata = SpecDecodeMetadata.make_dummy(guesses, torch.device("cpu"))
    outputs = [[100 + request] for request in range(len(guesses))]
    processors = LogitsProcessors()
    runner = runner_of(outputs, processors)
    plain = Plain()
    sampler = SpeculativeSampler(plain, runner, SpeculationConfig())
    said = sampler(metadata, None, logits, sampling(len(guesses), outputs, **changed))
    return said, plain, outputs


def runner_of(outputs: list[list[int]], processors: Any, **params: Any) -> Any:
    """As much of vLLM's runner as the sampler looks at."""
    names = [f"request-{place}" for place in range(len(outputs))]
    settings = SimpleNamespace(**{"extra_args": None, "structured_outputs": None} | params)
    return SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=names, req_output_token_ids=outputs, logitsprocs=processors),
        requests={name: SimpleNamespace(sampling_params=settings) for name in names},
        _draft_probs=None,
        _draft_prob_req_ids=None,
    )


GUESSES = [[1, 2, 3], [4], [], [5, 5]]
TARGET = [[1, 2, 7, 6], [0, 3], [2], [5, 5, 1]]
SAID = [[1, 2, 7, -1], [0, -1, -1, -1], [2, -1, -1, -1], [5, 5, 1, -1]]


@pytest.mark.parametrize("greedy", [True, False])
def test_words_are_kept_up_to_the_first_that_was_not_guessed(greedy: bool) -> None:
    output, _, _ = run(GUESSES, TARGET, all_greedy=greedy, all_random=not greedy)
    assert output.sampled_token_ids.tolist() == SAID
    assert output.sampled_token_ids.dtype == torch.int32


def test_a_generator_draws_once_for_every_token_that_is_said() -> None:
    generators = {request: torch.Generator().manual_seed(request) for request in range(4)}
    _, plain, _ = run(GUESSES, TARGET, generators=generators)
    assert plain.drawn == [[0, 1, 2, 3], [0, 3], [0, 3]]
    _, plain, _ = run(GUESSES, TARGET, generators=generators, bad_words_token_ids={0: [[7, 7]]})
    assert plain.drawn == [[0, 1, 2, 3], [0, 3], [0, 3]]


def test_only_those_that_still_speak_are_sampled_for_where_that_can_be_told_apart() -> None:
    assert run(GUESSES, TARGET)[1].num_rows == [4, 2, 2]
    assert run(GUESSES, TARGET, bad_words_token_ids={0: [[7, 7]]})[1].num_rows == [4, 4, 4]
    temperature = torch.tensor([1.0, 2.0, 3.0, 4.0])
    _, plain, _ = run(GUESSES, TARGET, temperature=temperature, top_p=temperature / 4)
    assert [each.tolist() for each in plain.temperatures] == [[1.0, 2.0, 3.0, 4.0], [1.0, 4.0], [1.0, 4.0]]


def test_what_was_kept_counts_as_said_and_is_then_taken_back() -> None:
    _, plain, outputs = run(GUESSES, TARGET)
    assert plain.outputs[2] == [[100, 1, 2], [101], [102], [103, 5, 5]]
    assert outputs == [[100], [101], [102], [103]]


def test_outputs_are_taken_back_though_sampling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(self: Plain, logits: torch.Tensor, sampling: SamplingMetadata) -> SamplerOutput:
        calls.append(sampling)
        if len(calls) == 2:
            raise RuntimeError("no")
        return SamplerOutput(logits.argmax(dim=-1, keepdim=True).to(torch.int32), None)

    monkeypatch.setattr(Plain, "__call__", fail)
    with pytest.raises(RuntimeError):
        run(GUESSES, TARGET)
    assert calls[0].output_token_ids == [[100], [101], [102], [103]]


def test_logprobs_come_request_by_request() -> None:
    output, _, _ = run(GUESSES, TARGET, max_num_logprobs=0)
    assert output.logprobs_tensors is not None
    ids = output.logprobs_tensors.logprob_token_ids[:, 0].reshape(4, 4)
    for request, words in enumerate(SAID):
        kept = [word for word in words if word >= 0]
        assert ids[request, : len(kept)].tolist() == kept
