"""The parity matrix: which engines and cells there are, and how outputs are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from v2_bench.models import Models
from v2_bench.processes import run_on_bench

Mode: TypeAlias = Literal["sync", "async"]
Drafter: TypeAlias = Literal[
    "lookup", "trees", "decoys", "draft_model", "eagle3", "eagle3_speculators", "mtp"
]

TIGHT: Final = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 18}
"""Chunked prefill and little memory: the baseline prefills each prompt in one step and preempts nothing."""
TIGHT_WITH_SCRATCH: Final = {
    **TIGHT,
    "num_gpu_blocks_override": 24,
    "max_num_seqs": 12,
    "max_num_active_seqs": 8,
}
"""As many blocks and requests, beside the scratch blocks and sequences of three side paths."""
MAX_DRAFT: Final = 4
MAX_TREE: Final = 12
"""Draft tokens of a tree."""
TREES: Final[Mapping[str, tuple[str, ...]]] = {
    "trees": ("suffix", "grammar"),
    "decoys": ("v2_bench.decoy_drafter:DecoyDrafter",),
}
"""The drafters of the engines with draft trees."""
TOLERANCE: Final = 1e-3
"""Largest difference of log-probabilities: the width of a matrix product changes its rounding."""


def speculative_arguments(model: Path | None, mode: Mode, drafter: Drafter) -> dict[str, Any]:
    """The engine's arguments for forerun with one drafter; `model` is the folder of that drafter."""
    from forerun.config import SpeculationConfig
    from forerun.engines.vllm.launch import engine_arguments

    given: dict[str, Any] = {"adaptive": False, "max_draft": MAX_DRAFT}
    speculative_config: dict[str, Any] | None = None
    if drafter in TREES:
        given |= {"drafters": TREES[drafter], "draft_trees": True, "max_draft": MAX_TREE}
    elif drafter == "lookup":
        given |= {"drafters": ("suffix", "grammar")}
    elif drafter == "mtp":
        speculative_config = {"method": "mtp", "num_speculative_tokens": 2}
    elif drafter != "draft_model":
        speculative_config = {"method": "eagle3", "model": str(model), "num_speculative_tokens": 3}
    else:
        given |= {"drafters": ("model",), "draft_model": str(model), "max_draft": 3}
    return engine_arguments(
        SpeculationConfig(**given),
        runner="v2",
        asynchronous=mode == "async",
        speculative_config=speculative_config,
    )


def drafter_folder(models: Models, drafter: Drafter) -> Path | None:
    """The folder of a drafter's model; the MTP head is part of its target."""
    folders = {
        "draft_model": models.draft,
        "eagle3": models.eagle3,
        "eagle3_speculators": models.eagle3_speculators,
    }
    return folders.get(drafter)


def run_forerun(models: Models, mode: Mode, drafter: Drafter, **request: Any) -> Any:
    """Run the cells with forerun, chunked prefill and little memory."""
    return run_forerun_requests(models, mode, drafter, [request])[0]


def run_forerun_requests(
    models: Models, mode: Mode, drafter: Drafter, requests: Sequence[dict[str, Any]]
) -> Any:
    """Like `run_forerun`, for several requests to one engine, in their order."""
    tight = TIGHT_WITH_SCRATCH if drafter in TREES else TIGHT
    options = {**speculative_arguments(drafter_folder(models, drafter), mode, drafter), **tight}
    return run_requests(models.mtp if drafter == "mtp" else models.target, options, requests)


def run_parity(model: Path, options: dict[str, Any], **request: Any) -> Any:
    """Run the program `v2_parity` with an engine; returns its cells."""
    return run_requests(model, options, [request])[0]


def run_requests(model: Path, options: dict[str, Any], requests: Sequence[dict[str, Any]]) -> Any:
    """Like `run_parity`, for several requests to one engine, in their order."""
    return run_on_bench("v2_parity", model, json.dumps(options), json.dumps(list(requests)))


def compare(baseline: dict[str, Any], ours: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One record per cell."""
    for name, cell in ours["cells"].items():
        expected = baseline["cells"][name]
        found = cell["outputs"]
        num_tokens = sum(len(one["tokens"]) for one in found)
        yield {
            "settings": name,
            "num_prompts": cell["num_prompts"],
            "identical": len(found) == len(expected["outputs"])
            and all(map(same_output, expected["outputs"], found)),
            "tokens_per_step": round(num_tokens / max(1, num_tokens - cell["accepted"]), 2),
        }


def same_output(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether two outputs are identical, and their log-probabilities equal up to rounding."""
    exact = ("tokens", "text", "finish")
    return all(expected[key] == found[key] for key in exact) and all(
        same_logprobs(expected[key], found[key]) for key in ("logprobs", "prompt_logprobs")
    )


def same_logprobs(expected: list[Any], found: list[Any]) -> bool:
    """Whether all positions have the same tokens and ranks, and nearly the same values."""
    return len(expected) == len(found) and all(
        [one[:2] for one in mine] == [one[:2] for one in stock]
        and all(abs(a[2] - b[2]) < TOLERANCE for a, b in zip(mine, stock, strict=True))
        for mine, stock in zip(found, expected, strict=True)
    )
