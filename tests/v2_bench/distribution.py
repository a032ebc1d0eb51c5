"""The output distribution of unseeded requests on the bench: samples of three tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from v2_bench.models import write_draft, write_target
from v2_bench.parity import Drafter, Mode, speculative_arguments
from v2_bench.processes import run_on_bench

VOCAB: Final = 16
PROMPT: Final = [3, 1, 4, 1, 5, 9, 2, 6] * 5 + [3, 1, 4]
OPTIONS: Final[dict[str, Any]] = {"max_model_len": 64, "max_num_seqs": 64, "skip_tokenizer_init": True}


def make_models(folder: Path) -> tuple[Path, Path]:
    """A target with a vocabulary of 16 and a flat distribution, and a draft model."""
    weights = write_target(folder / "target", vocab=VOCAB, sharpness=1.0, logit_scale=0.3)
    write_draft(folder / "draft", weights)
    return folder / "target", folder / "draft"


def sample(folder: Path, mode: Mode, drafter: Drafter, num_samples: int, **request: Any) -> Any:
    """Sample with forerun; returns the tokens and the number of accepted draft tokens."""
    # vLLM draws the seeds of unseeded requests from the engine's: the drafters get independent samples.
    seed = {"seed": 1 if drafter == "lookup" else 2}
    options = {**OPTIONS, **seed, **speculative_arguments(folder / "draft", mode, drafter)}
    asked = {"prompt": PROMPT, "num_samples": num_samples, **request}
    return run_on_bench("v2_distribution", folder / "target", json.dumps(options), json.dumps(asked))
