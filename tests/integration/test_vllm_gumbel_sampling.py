"""Chains sampled at once equal vLLM's sampler position by position, in tokens and states of generators."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.sampler import Sampler as StockSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from forerun.config import SpeculationConfig
from forerun.engines.vllm.v1 import gumbel_sampling
from forerun.engines.vllm.v1.gumbel_sampling import (
    draw_seeds,
    gumbel_argmax,
    install_gumbel_argmax,
    samples_like_vllm,
)
from forerun.engines.vllm.v1.sampler import SpeculativeSampler
from integration.test_vllm_sampler_identity import runner_of, sampling

NUM_CASES = 10_000
REQUESTS_PER_BATCH = 8

pytestmark = pytest.mark.filterwarnings("default")


def random_batch(number: int) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
    """Drafts that are likely, logits with ties and masked tokens, and temperatures of which some are 0."""
    random = torch.Generator().manual_seed(number)
    vocab = int(torch.randint(2, 600, (1,), generator=random))
    lengths = torch.randint(0, 9, (REQUESTS_PER_BATCH,), generator=random).tolist()
    logits = torch.randn(sum(lengths) + REQUESTS_PER_BATCH, vocab, generator=random)
    logits *= float(torch.randint(1, 12, (1,), generator=random))
    if number % 3 == 0:
        logits = logits.round()
    if number % 4 == 0:
        logits[:, 1:].masked_fill_(torch.rand(logits[:, 1:].shape, generator=random) < 0.3, -math.inf)
    temperature = 0.2 + 1.5 * torch.rand(REQUESTS_PER_BATCH, generator=random)
    if number % 5 == 0:
        temperature[::3] = 0.0
    likely, drafts, start = logits.argmax(dim=-1).tolist(), [], 0
    for length in lengths:
        drafts.append(likely[start : start + length])
        start += length + 1
    return drafts, logits, temperature


def generators_of(number: int) -> dict[int, torch.Generator]:
    """Generators for all requests but one, in an order that is not that of the requests."""
    return {
        request: torch.Generator().manual_seed(100 * number + request)
        for request in reversed(range(REQUESTS_PER_BATCH))
        if request != number % REQUESTS_PER_BATCH
    }


def sample(number: int, *, samples_chains: bool) -> tuple[list[list[int]], list[bytes]]:
    """Output tokens of the requests with a seed, and the final states of their generators."""
    drafts, logits, temperature = random_batch(number)
    outputs: list[list[int]] = [[] for _ in drafts]
    runner = runner_of(outputs, LogitsProcessors())
    sampler = SpeculativeSampler(StockSampler(), runner, SpeculationConfig(), samples_chains=samples_chains)
    generators = generators_of(number)
    has_greedy = bool((temperature == 0).any())
    settings = sampling(
        len(drafts), outputs, temperature=temperature, generators=generators, all_random=not has_greedy
    )
    metadata = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    rows = sampler(metadata, None, logits, settings).sampled_token_ids.tolist()
    states = [generator.get_state().numpy().tobytes() for generator in generators.values()]
    return [rows[request] for request in generators], states


def test_the_installed_vllm_draws_its_noise_as_expected() -> None:
    assert samples_like_vllm(StockSampler())


def test_chains_equal_position_by_position_sampling() -> None:
    num_accepted = 0
    for number in range(NUM_CASES // REQUESTS_PER_BATCH):
        chains = sample(number, samples_chains=True)
        assert chains == sample(number, samples_chains=False), number
        num_accepted += sum(token >= 0 for row in chains[0] for token in row[1:])
    assert num_accepted > NUM_CASES  # several positions per request are compared


def test_noise_of_another_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gumbel_sampling, "gumbel_argmax", lambda logits, seeds: logits.argmax(dim=-1))
    assert not samples_like_vllm(StockSampler())


def test_a_generator_that_advances_too_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin of the comparison: a request draws one seed too many."""
    expected = [sample(number, samples_chains=False) for number in range(20)]
    monkeypatch.setattr(
        gumbel_sampling,
        "draw_seeds",
        lambda num, generator=None: draw_seeds(num + (generator is not None), generator)[:num],
    )
    faulty = [sample(number, samples_chains=True) for number in range(20)]
    assert [tokens for tokens, _ in faulty] == [tokens for tokens, _ in expected]
    assert [states for _, states in faulty] != [states for _, states in expected]


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf])
def test_invalid_logits_are_left_to_vllm(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts, logits, temperature = random_batch(1)
    logits[0, -1] = value
    monkeypatch.setattr(
        "integration.test_vllm_gumbel_sampling.random_batch", lambda _: (drafts, logits, temperature)
    )
    assert sample(1, samples_chains=True) == sample(1, samples_chains=False)
    assert gumbel_sampling.sample_chains(logits, drafts, temperature, {}) is None
    seeds = draw_seeds(len(logits))
    assert torch.equal(gumbel_argmax(logits, seeds), torch.ops._C.fused_gumbel_argmax(logits, seeds))


def test_rows_without_a_valid_token_are_left_to_vllm() -> None:
    logits, seeds = torch.full((3, 50), -math.inf), draw_seeds(3)
    assert torch.equal(gumbel_argmax(logits, seeds), torch.ops._C.fused_gumbel_argmax(logits, seeds))


@pytest.mark.parametrize("top_k", [None, 3])
def test_steps_without_drafts_sample_as_before(top_k: int | None) -> None:
    stock, fast = StockSampler(), StockSampler()
    install_gumbel_argmax(fast)
    for number in range(40):
        _, logits, temperature = random_batch(number)
        rows = logits[:REQUESTS_PER_BATCH]
        results: list[Any] = []
        for sampler in (stock, fast):
            generators = generators_of(number)
            changed = {"top_k": None if top_k is None else torch.full((REQUESTS_PER_BATCH,), min(top_k, 2))}
            settings = sampling(
                REQUESTS_PER_BATCH,
                [[] for _ in range(REQUESTS_PER_BATCH)],
                temperature=temperature.clamp(min=0.1),
                generators=generators,
                **changed,
            )
            output = sampler(rows.clone(), settings).sampled_token_ids[[*generators]]
            results.append((output.tolist(), [draw_seeds(1, each).item() for each in generators.values()]))
        assert results[0] == results[1]
