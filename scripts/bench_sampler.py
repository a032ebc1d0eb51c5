"""Times the V1 sampler on a CPU: whole drafts at once against vLLM's sampler position by position.

Logits are those of the model on questions; draft tokens are the tokens that the sampler takes, each of them
replaced by another token with probability 1 - acceptance. Prints one JSON line per cell: median milliseconds
of a step, and the ratio with the quartiles of the interleaved repeats.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from e2e.questions import read_questions
from forerun.config import SpeculationConfig
from forerun.engines.vllm.v1.gumbel_sampling import samples_like_vllm
from forerun.engines.vllm.v1.sampler import SpeculativeSampler
from integration.test_vllm_sampler_identity import runner_of, sampling


@torch.inference_mode()
def rows_of_model(model: Path, num: int) -> torch.Tensor:
    """Logits of `num` positions of questions."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows: list[torch.Tensor] = []
    for text in read_questions(40):
        rows.append(network(tokenizer(text, return_tensors="pt").input_ids).logits[0])
        if sum(map(len, rows)) >= num:
            break
    return torch.cat(rows)[:num].contiguous()


class TimedSampler:
    """One path of the sampler, for seeded requests at temperature 1."""

    def __init__(self, num_requests: int, *, samples_chains: bool) -> None:
        self.outputs: list[list[int]] = [[] for _ in range(num_requests)]
        runner = runner_of(self.outputs, LogitsProcessors())
        self.sampler = SpeculativeSampler(
            Sampler(), runner, SpeculationConfig(), samples_chains=samples_chains
        )
        self.seconds = 0.0

    def __call__(self, logits: torch.Tensor, drafts: list[list[int]]) -> list[list[int]]:
        """The tokens of one step; sets its duration."""
        generators = {request: torch.Generator().manual_seed(request) for request in range(len(drafts))}
        settings = sampling(len(drafts), self.outputs, generators=generators)
        metadata = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
        rows = logits.clone()
        began = time.perf_counter()
        output = self.sampler(metadata, None, rows, settings)
        self.seconds = time.perf_counter() - began
        tokens: list[list[int]] = output.sampled_token_ids.tolist()
        return tokens


def make_drafts(logits: torch.Tensor, num: int, length: int, acceptance: float) -> list[list[int]]:
    """Drafts of which a token is accepted with this probability."""
    rows = [row.tolist() for row in logits.view(num, length + 1, -1).argmax(dim=-1)]
    drafts = [row[:length] for row in rows]
    random, sample = np.random.default_rng(0), TimedSampler(num, samples_chains=False)
    for position in range(length):  # the seeds decide which token is sampled, given those before
        sampled = sample(logits, drafts)
        for draft, tokens in zip(drafts, sampled, strict=True):
            if tokens[position] >= 0:
                wrong = random.random() > acceptance
                draft[position] = (tokens[position] + 1) % logits.shape[1] if wrong else tokens[position]
    return drafts


def main(
    model: Annotated[Path, typer.Option(help="Directory of the model.")],
    num_requests: Annotated[list[int] | None, typer.Option(help="Requests of a step; 1, 8 and 16.")] = None,
    length: Annotated[int, typer.Option(help="Draft tokens per request.")] = 8,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 30,
) -> None:
    """Compare both paths."""
    if not samples_like_vllm(Sampler()):
        raise typer.Exit(1)
    for num in num_requests or [1, 8, 16]:
        logits = rows_of_model(model, num * (length + 1))
        for acceptance in (0.0, 0.3, 0.6, 0.9, 1.0):
            drafts = make_drafts(logits, num, length, acceptance)
            print(json.dumps(compare(logits, drafts, repeats) | {"acceptance": acceptance}), flush=True)


def compare(logits: torch.Tensor, drafts: list[list[int]], repeats: int) -> dict[str, Any]:
    """Times and ratio of one cell; the outputs must be equal."""
    paths = [TimedSampler(len(drafts), samples_chains=each) for each in (False, True)]
    expected = paths[0](logits, drafts)
    seconds: list[tuple[float, float]] = []
    for _ in range(repeats):
        if any(path(logits, drafts) != expected for path in paths):
            raise SystemExit("the outputs differ")
        seconds.append((paths[0].seconds, paths[1].seconds))
    times = np.array(seconds)
    low, ratio, high = np.quantile(times[:, 0] / times[:, 1], (0.25, 0.5, 0.75)).round(2).tolist()
    return {
        "requests": len(drafts),
        "draft_tokens": len(drafts[0]),
        "emitted": sum(token >= 0 for row in expected for token in row),
        "by_position_ms": round(1e3 * float(np.median(times[:, 0])), 2),
        "at_once_ms": round(1e3 * float(np.median(times[:, 1])), 2),
        "ratio": ratio,
        "quartiles": [low, high],
    }


if __name__ == "__main__":
    typer.run(main)
