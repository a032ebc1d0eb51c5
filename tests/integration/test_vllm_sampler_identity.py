"""The sampler for vLLM on top of a transparent fake of vLLM's own: accepted tokens, and restored state."""

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
from forerun.engines.vllm.v1.sampler import SpeculativeSampler

VOCAB = 8


class ArgmaxSampler:
    """Takes the most likely token, and records the generators, rows, temperatures and outputs it is given."""

    def __init__(self) -> None:
        self.seeds: list[list[int]] = []
        self.num_rows: list[int] = []
        self.temperatures: list[Any] = []
        self.outputs: list[list[list[int]]] = []

    @staticmethod
    def greedy_sample(logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(dim=-1)

    def __call__(self, logits: torch.Tensor, sampling: SamplingMetadata) -> SamplerOutput:
        self.seeds.append([generator.initial_seed() for generator in sampling.generators.values()])
        self.num_rows.append(len(logits))
        self.temperatures.append(sampling.temperature)
        self.outputs.append([list(output) for output in sampling.output_token_ids])
        tokens = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        logprobs = LogprobsTensors(tokens, logits.gather(1, tokens.long()), tokens[:, 0])
        has_logprobs = sampling.max_num_logprobs is not None
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs if has_logprobs else None)


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
    drafts: list[list[int]], target: list[list[int]], **changed: Any
) -> tuple[SamplerOutput, ArgmaxSampler, list[list[int]]]:
    """Sample with a target that generates these tokens at the rows of each request."""
    logits = torch.nn.functional.one_hot(torch.tensor([t for row in target for t in row]), VOCAB).float()
    metadata = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    outputs = [[100 + request] for request in range(len(drafts))]
    processors = LogitsProcessors()
    runner = runner_of(outputs, processors)
    stock = ArgmaxSampler()
    sampler = SpeculativeSampler(stock, runner, SpeculationConfig())
    output = sampler(metadata, None, logits, sampling(len(drafts), outputs, **changed))
    return output, stock, outputs


def runner_of(outputs: list[list[int]], processors: Any, **params: Any) -> Any:
    """The parts of vLLM's runner that the sampler uses."""
    names = [f"request-{index}" for index in range(len(outputs))]
    settings = SimpleNamespace(**{"extra_args": None, "structured_outputs": None} | params)
    return SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=names, req_output_token_ids=outputs, logitsprocs=processors),
        requests={name: SimpleNamespace(sampling_params=settings) for name in names},
        _draft_probs=None,
        _draft_prob_req_ids=None,
    )


DRAFTS = [[1, 2, 3], [4], [], [5, 5]]
TARGET = [[1, 2, 7, 6], [0, 3], [2], [5, 5, 1]]
EMITTED = [[1, 2, 7, -1], [0, -1, -1, -1], [2, -1, -1, -1], [5, 5, 1, -1]]


@pytest.mark.parametrize("greedy", [True, False])
def test_the_output_ends_with_the_first_token_that_differs_from_the_draft(greedy: bool) -> None:
    output, _, _ = run(DRAFTS, TARGET, all_greedy=greedy, all_random=not greedy)
    assert output.sampled_token_ids.tolist() == EMITTED
    assert output.sampled_token_ids.dtype == torch.int32


def test_a_generator_advances_once_per_emitted_token() -> None:
    generators = {request: torch.Generator().manual_seed(request) for request in range(4)}
    _, stock, _ = run(DRAFTS, TARGET, generators=generators)
    assert stock.seeds == [[0, 1, 2, 3], [0, 3], [0, 3]]
    _, stock, _ = run(DRAFTS, TARGET, generators=generators, bad_words_token_ids={0: [[7, 7]]})
    assert stock.seeds == [[0, 1, 2, 3], [0, 3], [0, 3]]


def test_only_active_requests_are_sampled_if_rows_are_independent() -> None:
    assert run(DRAFTS, TARGET)[1].num_rows == [4, 2, 2]
    assert run(DRAFTS, TARGET, bad_words_token_ids={0: [[7, 7]]})[1].num_rows == [4, 4, 4]
    temperature = torch.tensor([1.0, 2.0, 3.0, 4.0])
    _, stock, _ = run(DRAFTS, TARGET, temperature=temperature, top_p=temperature / 4)
    assert [each.tolist() for each in stock.temperatures] == [[1.0, 2.0, 3.0, 4.0], [1.0, 4.0], [1.0, 4.0]]


def test_accepted_tokens_are_part_of_the_outputs_only_during_sampling() -> None:
    _, stock, outputs = run(DRAFTS, TARGET)
    assert stock.outputs[2] == [[100, 1, 2], [101], [102], [103, 5, 5]]
    assert outputs == [[100], [101], [102], [103]]


def test_outputs_are_restored_if_sampling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(self: ArgmaxSampler, logits: torch.Tensor, sampling: SamplingMetadata) -> SamplerOutput:
        calls.append(sampling)
        if len(calls) == 2:
            raise RuntimeError("sampling failed")
        return SamplerOutput(logits.argmax(dim=-1, keepdim=True).to(torch.int32), None)

    monkeypatch.setattr(ArgmaxSampler, "__call__", fail)
    with pytest.raises(RuntimeError):
        run(DRAFTS, TARGET)
    assert calls[0].output_token_ids == [[100], [101], [102], [103]]


def test_logprobs_are_grouped_by_request() -> None:
    output, _, _ = run(DRAFTS, TARGET, max_num_logprobs=0)
    assert output.logprobs_tensors is not None
    ids = output.logprobs_tensors.logprob_token_ids[:, 0].reshape(4, 4)
    for request, row in enumerate(EMITTED):
        tokens = [token for token in row if token >= 0]
        assert ids[request, : len(tokens)].tolist() == tokens
