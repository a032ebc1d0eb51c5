"""The arguments of `vllm bench serve` for a turn, and the file of prompts that it reads.

Chat and code editing are files in ShareGPT's format, whose prompts have the model's chat template, and end
where the model ends them. Random text is the client's own dataset `random`, which ignores the end-of-sequence
token. Every prompt begins with a number of its own: prefix caching, on by default, would otherwise skip the
prefill of prompts that an earlier alternation sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from forerun.bench.stock_load import RANDOM, LoadCell

RANDOM_INPUT_LENGTH: Final = 256
"""Prompt tokens of random text."""


@dataclass(frozen=True, slots=True)
class ClientTurn:
    """One run of the client. An open load has a request rate."""

    cell: LoadCell
    num_prompts: int
    max_tokens: int
    seed: int
    request_rate: float | None = None


def client_arguments(turn: ClientTurn, model: Path, prompts: Path, result: Path) -> list[str]:
    """The arguments of `vllm bench serve`, without those that name the server.

    Chunked or not, a seeded request has the same seed on both servers, so that outputs can be compared.
    """
    sampling = ["--temperature", f"{turn.cell.temperature:g}", "--seed", str(turn.seed)]
    if turn.cell.temperature:
        sampling += ["--extra-body", json.dumps({"seed": turn.seed})]
    return [
        "--backend", "openai",
        "--model", str(model),
        *_load_arguments(turn),
        *_text_arguments(turn, prompts),
        *sampling,
        "--num-prompts", str(turn.num_prompts),
        "--save-result",
        "--save-detailed",
        "--result-filename", str(result),
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "50,99",
        "--ready-check-timeout-sec", "0",
        "--disable-tqdm",
    ]  # fmt: skip


def _load_arguments(turn: ClientTurn) -> list[str]:
    if turn.cell.load.kind == "closed":
        return ["--max-concurrency", str(int(turn.cell.load.level))]
    if turn.request_rate is None:
        raise ValueError(f"{turn.cell} needs a request rate, got none")
    return ["--request-rate", f"{turn.request_rate:.6g}", "--burstiness", "1"]


def _text_arguments(turn: ClientTurn, prompts: Path) -> list[str]:
    length = str(turn.max_tokens)
    if turn.cell.text == RANDOM:
        size = ["--random-input-len", str(RANDOM_INPUT_LENGTH), "--random-output-len", length]
        return ["--dataset-name", "random", *size]
    order = ["--disable-shuffle", "--no-oversample"]
    return [
        "--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--sharegpt-output-len", length, *order
    ]  # fmt: skip


def choose_prompts(texts: Sequence[str], turn: ClientTurn) -> list[str]:
    """The prompts of a turn: all texts in random order, again if they are too few, each with a number."""
    random = np.random.default_rng(turn.seed)
    chosen: list[str] = []
    while len(chosen) < turn.num_prompts:
        chosen += [texts[each] for each in random.permutation(len(texts))]
    numbered = enumerate(chosen[: turn.num_prompts])
    return [f"Request {turn.seed}-{number}.\n\n{text}" for number, text in numbered]


def write_prompts(prompts: Sequence[str], apply_template: Callable[[str], str], file: Path) -> None:
    """Write prompts in ShareGPT's format. The client needs an answer in each, and ignores it."""
    entries = [
        {"conversations": [{"value": apply_template(prompt)}, {"value": "(ignored)"}]} for prompt in prompts
    ]
    file.write_text(json.dumps(entries), encoding="utf-8")
