"""Compares speculative beam search with beam search of transformers and of the local engine without a draft.

    make bench-beam-search ARGS="--draft DIR"

Outputs and scores, forward passes of the target after the prompt, and seconds, in float32. The three searches
of a prompt follow each other in random order.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console
from transformers import AutoModelForCausalLM, GenerationConfig

from forerun import LLM
from forerun.bench.provenance import provenance
from forerun.bench.run_facts import PACKAGES
from forerun.bench.suites import read_suite
from forerun.cli.console import report_errors
from forerun.models.tokenization import encode

ROOT: Final = Path(__file__).parents[1]
TRANSFORMERS, PLAIN, SPECULATIVE = "transformers", "forerun without a draft", "forerun with a draft"


def of_transformers(
    model: Any, ids: list[int], num_beams: int, max_tokens: int, ends: list[int]
) -> tuple[list[list[int]], list[float]]:
    """Outputs and scores of `generate`."""
    config = GenerationConfig(
        num_beams=num_beams,
        num_return_sequences=num_beams,
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=-1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    outputs = [[token for token in row[len(ids) :] if token >= 0] for row in found.sequences.tolist()]
    return outputs, found.sequences_scores.tolist()


def of_engine(llm: LLM, ids: list[int], num_beams: int, max_tokens: int) -> tuple[Any, ...]:
    """Outputs, scores and statistics of the local engine."""
    (result,) = llm.beam_search([ids], num_beams=num_beams, max_tokens=max_tokens)
    outputs = [list(each.token_ids) for each in result.outputs]
    return outputs, [each.score for each in result.outputs], result.stats


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    draft: Annotated[Path, typer.Option(help="Directory of the draft model.")],
    questions: Annotated[Path, typer.Option(help="Prompts.")] = ROOT / "tests" / "data" / "questions.jsonl",
    num_prompts: Annotated[int, typer.Option(min=1)] = 20,
    num_beams: Annotated[int, typer.Option(min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(min=1)] = 40,
    record: Annotated[Path, typer.Option(help="The record.")] = ROOT / "docs/records/beam-search.json",
) -> None:
    """Measure on an otherwise idle machine; 20 prompts take about five minutes."""
    console = Console(stderr=True)
    with report_errors():
        reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        engines = {
            PLAIN: LLM(model, "suffix", dtype="float32"),
            SPECULATIVE: LLM(model, f"model:{draft}", dtype="float32"),
        }
        prompts = [each.text for each in read_suite(str(questions))[:num_prompts]]
        rows = []
        for number, prompt in enumerate(prompts):
            tokenizer = engines[PLAIN].tokenizer
            ids = encode(tokenizer, [{"role": "user", "content": prompt}])
            ends = sorted(engines[PLAIN].engine.eos_token_ids)
            found, seconds = {}, {}
            for name in random.Random(number).sample([TRANSFORMERS, PLAIN, SPECULATIVE], 3):  # noqa: S311
                began = time.perf_counter()
                if name == TRANSFORMERS:
                    found[name] = of_transformers(reference, ids, num_beams, max_tokens, ends)
                else:
                    found[name] = of_engine(engines[name], ids, num_beams, max_tokens)
                seconds[name] = time.perf_counter() - began
            rows.append(row_of(found, seconds))
            console.print(rows[-1], highlight=False)
    result = {
        **provenance("make bench-beam-search", PACKAGES),
        "settings": {
            "model": model.name,
            "draft": draft.name,
            "dtype": "float32",
            "num_beams": num_beams,
            "max_tokens": max_tokens,
        },
        "summary": summary(rows),
        "prompts": rows,
    }
    record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(result["summary"], highlight=False)


def row_of(found: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    """What was measured on one prompt."""
    expected, scores = found[TRANSFORMERS]
    outputs, own_scores, stats = found[SPECULATIVE]
    return {
        "identical": outputs == expected and found[PLAIN][0] == expected,
        "largest_score_difference": max(
            abs(one - other) for one, other in zip(own_scores, scores, strict=True)
        ),
        "passes": {PLAIN: found[PLAIN][2].num_passes, SPECULATIVE: stats.num_passes},
        "drafted_steps": stats.num_drafted,
        "accepted_steps": stats.num_accepted,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals and median ratios over prompts."""
    passes = {name: sum(row["passes"][name] for row in rows) for name in (PLAIN, SPECULATIVE)}
    return {
        "identical": f"{sum(row['identical'] for row in rows)}/{len(rows)}",
        "largest_score_difference": max(row["largest_score_difference"] for row in rows),
        "passes": passes,
        "passes_ratio": round(passes[SPECULATIVE] / passes[PLAIN], 3),
        "acceptance_rate": round(
            sum(row["accepted_steps"] for row in rows) / max(sum(row["drafted_steps"] for row in rows), 1), 3
        ),
        "speedup": {
            f"{SPECULATIVE} / {other}": [
                round(value, 3)
                for value in statistics.quantiles(
                    [row["seconds"][other] / row["seconds"][SPECULATIVE] for row in rows], n=4
                )
            ]
            for other in (TRANSFORMERS, PLAIN)
        },
    }


if __name__ == "__main__":
    typer.run(main)
