"""Generates the cells of the parity matrix with one engine on the bench.

Arguments: model, engine options (JSON), requests (JSON). Each request has `settings` (names, all if missing),
`num_prompts`, `prompts` (tokens), `num_tokens`, `batches` ("alone", "batched", "mixed"), `scenarios` (names)
and `sabotage`, a defect for the duration of the request. The answer has the cells and counters of each.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from e2e.programs.engine_output import answer
from v2_bench.engine import BenchEngine
from v2_bench.sabotage import ALL_SABOTAGES
from v2_bench.scenarios import SCENARIOS
from v2_bench.settings import (
    ASCII,
    DERIVED,
    PROMPTS,
    SETTINGS,
    derived_settings,
    prompts_for,
    sampling_params,
)


class Matrix:
    """Runs cells and collects their outputs."""

    def __init__(self, engine: BenchEngine, prompts: list[list[int]], num_tokens: int) -> None:
        self.engine, self.prompts, self.num_tokens = engine, prompts, num_tokens
        self.cells: dict[str, Any] = {}

    def run(self, name: str, generate: Callable[[], list[Any]], num_prompts: int | None = None) -> None:
        """Run one cell; without `num_prompts`, each output has its own prompt."""
        before = self.engine.num_accepted
        outputs = generate()
        accepted = self.engine.num_accepted - before
        self.cells[name] = {
            "outputs": outputs,
            "accepted": accepted,
            "num_prompts": num_prompts or len(outputs),
        }

    def alone(self, settings: dict[str, Any]) -> list[Any]:
        """One request at a time."""
        params = sampling_params(settings, self.num_tokens)
        prompts = prompts_for(settings, self.prompts)
        return [one for prompt in prompts for one in self.engine.generate([prompt], params)]

    def batched(self, settings: dict[str, Any]) -> list[Any]:
        """All prompts at once."""
        params = sampling_params(settings, self.num_tokens)
        return self.engine.generate(prompts_for(settings, self.prompts), params)

    def mixed(self, chosen: dict[str, dict[str, Any]]) -> list[Any]:
        """All prompts with all settings in one batch."""
        requests = [
            (prompt, sampling_params(settings, self.num_tokens))
            for settings in chosen.values()
            for prompt in prompts_for(settings, self.prompts)
        ]
        return self.engine.generate([prompt for prompt, _ in requests], [params for _, params in requests])


def all_settings(engine: BenchEngine) -> dict[str, dict[str, Any]]:
    """The static settings, and with a tokenizer those derived from greedy output."""
    if engine.llm.llm_engine.tokenizer is None:
        return SETTINGS
    ascii_only = {"temperature": 0, "allowed_token_ids": ASCII, "detokenize": True}
    greedy = engine.generate(prompts_for({}, PROMPTS), sampling_params(ascii_only, 40))
    derived = derived_settings([one["tokens"] for one in greedy], [one["text"] for one in greedy])
    assert tuple(derived) == DERIVED
    return {**SETTINGS, **derived}


def run_request(engine: BenchEngine, asked: dict[str, Any]) -> dict[str, Any]:
    """The cells of one request, and the engine's counters since its start."""
    trees_before = Counter(engine.tree_counts)
    prompts = asked.get("prompts", PROMPTS)[: asked.get("num_prompts", 4)]
    matrix = Matrix(engine, prompts, asked.get("num_tokens", 40))
    batches = asked.get("batches", ("alone", "batched"))
    known = all_settings(engine) if batches else {}
    chosen = {name: known[name] for name in asked.get("settings", known)}
    for batch in batches:
        if batch == "mixed":
            matrix.run("mixed", partial(matrix.mixed, chosen), len(prompts))
            continue
        for name, settings in chosen.items():
            generate = matrix.alone if batch == "alone" else matrix.batched
            matrix.run(f"{name}, {batch}", partial(generate, settings), len(prompts))
    for name in asked.get("scenarios", ()):
        matrix.run(name, partial(SCENARIOS[name], engine))
    counted = ("num_preemptions", "prefix_cache_hits", "spec_decode_num_draft_tokens")
    counters = {name: engine.counter(name) for name in counted}
    return {
        "cells": matrix.cells,
        "is_async": engine.is_async,
        "trees": dict(engine.tree_counts - trees_before),
        **counters,
    }


def main(model: str, options: str, requests: str) -> None:
    engine = BenchEngine(model, json.loads(options))
    results = []
    for asked in json.loads(requests):
        with ALL_SABOTAGES[asked["sabotage"]]() if "sabotage" in asked else nullcontext():
            results.append(run_request(engine, asked))
    answer(results)


if __name__ == "__main__":
    main(*sys.argv[1:])
