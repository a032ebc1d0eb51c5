"""Measures the acceptance of a draft model by temperature and sampling settings, for four ways to verify.

Independent noise: the draft token is sampled from q with its own noise and accepted if it equals the target's
sample. Coupled: it is sampled from q with the target's noise of the position. Coupled, temperature only: the
same, but q has only the request's temperature, as in vLLM's speculators. Rejection sampling: accepted with
probability min(1, p / q).

The target decodes without speculation, with the settings of the cell. At every position, p and q of the same
context give the exact acceptance probability of the first draft token: the sums over x of p(x) q(x), of
`coupled_matches` and of min(p(x), q(x)). Draws of the noise measure the same. Given that the target emits x,
a draft token that follows accepted ones is accepted with the term of x divided by p(x). The products of these
factors along the output give the expected accepted length, averaged over all positions of the output as the
start of a step. Under rejection sampling the emitted tokens have the same distribution, so one output serves
all four.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from coupling_figures import DRAFT_LENGTH, Position, measure, position, summarise
from coupling_table import MIN_RATIO, caption, tables
from forerun.bench.provenance import provenance
from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.logits_processors import RowContext, TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.models.input_rows import InputRows
from forerun.models.loading import get_eos_token_ids, load_model, load_tokenizer
from forerun.models.runner import Runner
from forerun.models.tokenization import check_same_vocabulary, encode
from forerun.prompts import read_prompt_file
from forerun.types import SamplingParams
from records import AsJson, Record

ROOT = Path(__file__).parents[1]
TEMPERATURES: Final = (0.5, 0.8, 1.0)
PENALTIES: Final = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 20": {"top_k": 20},
    "penalties": PENALTIES,
}
MAX_LENGTH: Final = 1024


@dataclass
class Decoding:
    """A request in decoding: its slots in both models, its tokens and its figures."""

    prompt: list[int]
    slots: tuple[int, int]
    seed: int
    output: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)


class Pair:
    """A target and a draft model that follow the same outputs; prompts are prefilled once for all cells."""

    def __init__(self, target: Runner, draft: Runner, prompts: Sequence[list[int]]) -> None:
        self.runners = (target, draft)
        self.end_tokens = get_eos_token_ids(target.model)
        self.requests = []
        for seed, prompt in enumerate(prompts):
            slots = (target.allocate(), draft.allocate())
            for runner, slot in zip(self.runners, slots, strict=True):
                runner.forward([InputRows(slot, prompt[:-1], num_logits=0)])
                runner.commit({slot: range(len(prompt) - 1)})
            self.requests.append(Decoding(prompt, slots, seed))

    def decode(self, sampling: SamplingParams, max_tokens: int, keys: range) -> list[list[Position]]:
        """Decode every prompt with these settings; returns the figures of each position, by prompt.

        `keys` are the noise keys of the draws.
        """
        for request in self.requests:
            request.output, request.positions = [], []
            for runner, slot in zip(self.runners, request.slots, strict=True):
                runner.truncate(slot, len(request.prompt) - 1)
        for _ in range(max_tokens):
            active = [each for each in self.requests if not self.end_tokens & set(each.output[-1:])]
            if not active:
                break
            self._step(active, sampling, keys)
        return [each.positions for each in self.requests]

    def _step(self, active: list[Decoding], sampling: SamplingParams, keys: range) -> None:
        contexts = [RowContext(TokenHistory(each.prompt, each.output)) for each in active]
        temperature_only = SamplingParams(temperature=sampling.temperature)
        p_logits, q_logits = (self._forward(index, active) for index in range(2))
        p, q, q_temperature = (
            probabilities(logits, BatchSampling.of([params] * len(active)), contexts)
            for logits, params in (
                (p_logits, sampling),
                (q_logits, sampling),
                (q_logits, temperature_only),
            )
        )
        where = np.array([len(each.prompt) + len(each.output) for each in active])
        tokens = exponential_race_rows(p, np.array([each.seed for each in active]), where)
        addresses = where + MAX_LENGTH * np.array([each.seed + 1 for each in active])
        measured = measure(p, q, q_temperature, addresses, keys)
        for row, (each, token) in enumerate(zip(active, tokens.tolist(), strict=True)):
            shares = {name: float(found[row]) for name, found in measured.items()}
            p_row, q_row, other = (probs[row].double().numpy() for probs in (p, q, q_temperature))
            each.positions.append(position(p_row, q_row, other, token, shares))
            each.output.append(token)

    def _forward(self, index: int, active: list[Decoding]) -> torch.Tensor:
        """The logits of the next token in one of the two models."""
        runner = self.runners[index]
        inputs = [InputRows(each.slots[index], (each.output or each.prompt)[-1:]) for each in active]
        logits = runner.forward(inputs)
        runner.commit({rows.slot: [0] for rows in inputs})
        return logits[:, : self.runners[0].vocab_size].float().clone()


def read_prompts(file: Path, num_prompts: int, tokenizer: Any) -> tuple[list[list[int]], int]:
    """The first prompts of each category in the chat template, and the number of categories."""
    by_category: dict[str, list[list[int]]] = defaultdict(list)
    for each in read_prompt_file(file):
        if len(by_category[each.category]) < num_prompts:
            by_category[each.category].append(encode(tokenizer, [{"role": "user", "content": each.text}]))
    return [prompt for prompts in by_category.values() for prompt in prompts], len(by_category)


def show(record: dict[str, Any]) -> None:
    """Print the tables."""
    Console().print(f"{caption(record)}.")
    for title, (heads, *rows) in tables(record).items():
        table = Table(title=title)
        for head in heads:
            table.add_column(head, justify="left" if head == "settings" else "right")
        for line, cells in zip(record["lines"], rows, strict=True):
            table.add_row(*cells, style=None if line["ratio"][0] >= MIN_RATIO else "red")
        Console().print(table)


def measure_cells(
    pair: Pair, max_tokens: int, num_draws: int, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One line per temperature and setting."""
    lines: list[dict[str, Any]] = []
    for temperature in TEMPERATURES:
        for name, settings in SETTINGS.items():
            report(f"temperature {temperature:g}, settings: {name}")
            sampling = SamplingParams(temperature=temperature, **settings)
            first = len(pair.requests) + len(lines) * num_draws  # above the seeds of the outputs
            outputs = pair.decode(sampling, max_tokens, range(first, first + num_draws))
            lines.append(summarise(temperature, name, outputs, num_draws))
    return lines


def main(
    model: Annotated[Path, typer.Option(help="Directory of the target model.")],
    draft_model: Annotated[Path, typer.Option(help="Directory of the draft model.")],
    prompts: Annotated[Path, typer.Option(help="Prompt file with categories.")] = (
        ROOT / "tests" / "data" / "questions.jsonl"
    ),
    num_prompts: Annotated[int, typer.Option(help="Prompts per category.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Output tokens per prompt and cell.")] = 32,
    num_draws: Annotated[int, typer.Option(help="Draws of the noise per position.")] = 64,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Measure the acceptance of coupled drafts: several minutes on one core."""
    tokenizer = load_tokenizer(model)
    check_same_vocabulary(tokenizer, load_tokenizer(draft_model))
    encoded, num_categories = read_prompts(prompts, num_prompts, tokenizer)
    target, draft = (
        Runner(load_model(path, torch.float32), num_slots=len(encoded) + 1, max_length=MAX_LENGTH)
        for path in (model, draft_model)
    )
    with Console(stderr=True).status("prefill") as status:
        lines = measure_cells(Pair(target, draft, encoded), max_tokens, num_draws, status.update)
    arguments = f"--num-prompts {num_prompts} --max-tokens {max_tokens} --num-draws {num_draws}"
    conditions = {
        "target": model.name,
        "draft_parameters": sum(weight.numel() for weight in draft.model.parameters()),
        "dtype": "float32",
        "prompts": prompts.name,
        "num_prompts": len(encoded),
        "num_categories": num_categories,
        "max_tokens": max_tokens,
        "num_draws": num_draws,
        "draft_length": DRAFT_LENGTH,
        "penalties": list(PENALTIES.items()),
    }
    facts = provenance(
        f"scripts/measure_coupling.py {arguments}",
        ("torch", "transformers", "numba"),
        torch.get_num_threads(),
    )
    made = {**facts, "conditions": conditions, "lines": lines}
    if record is not None:
        record.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(made, indent=2))
    else:
        show(made)


if __name__ == "__main__":
    typer.run(main)
