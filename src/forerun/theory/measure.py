"""Acceptance, costs, predicted and measured speedups of drafts for one target, on given prompts.

The measurements of Leviathan et al., sections 3.5, 4 and A.5, for models of your own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from forerun.bench.suites import Question
from forerun.config import SpeculationConfig
from forerun.core import theory
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.registry import make_drafters
from forerun.engines.local.engine import Engine
from forerun.engines.speculator import MODEL
from forerun.errors import ConfigurationError
from forerun.models.loading import (
    get_eos_token_ids,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
)
from forerun.models.runner import Runner
from forerun.models.tokenization import check_same_vocabulary, encode
from forerun.theory.acceptance import ALL, TextAcceptance, measure_acceptance, summarize_acceptance
from forerun.theory.draft_distributions import (
    CountedDistribution,
    DraftDistribution,
    LookupDistribution,
    ModelDistribution,
    UniformDistribution,
)
from forerun.theory.speeds import RANDOM, RandomDrafter, compare_speeds, time_decoding
from forerun.theory.target_text import TargetText, TokenPrompt, generate_texts
from forerun.types import Drafter

LOOKUP: Final = ("ngram", "suffix")
"""Drafters that need no model."""

MAX_BATCH: Final = 8
"""Outputs of the target that are generated together."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """What to measure. `drafts` are directories of draft models, and names in `LOOKUP`.

    Without `draft_lengths`, no speeds are measured.
    """

    target: str
    drafts: tuple[str, ...]
    temperatures: tuple[float, ...] = (0.0, 1.0)
    draft_lengths: tuple[int, ...] = (1, 2, 4, 8)
    max_tokens: int = 64
    dtype: str | None = None

    def __post_init__(self) -> None:
        for each in self.drafts:
            if each not in LOOKUP and not Path(each).is_dir():
                raise ConfigurationError(
                    f"draft {each!r}: expected the directory of a draft model, {' or '.join(LOOKUP)}"
                )

    @property
    def names(self) -> dict[str, str]:
        """The drafts by the name under which they are reported."""
        return {each if each in LOOKUP else Path(each).resolve().name: each for each in self.drafts}


def measure(
    plan: MeasurementPlan, questions: Sequence[Question], progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """Measure acceptance on outputs of the target, then speeds; the results as JSON values."""
    models = _Models(plan)
    prompts = [models.prompt(each) for each in questions]
    acceptance: list[TextAcceptance] = []
    speeds: list[dict[str, Any]] = []
    for temperature in plan.temperatures:
        texts = models.texts(prompts, temperature, progress)
        found = list(models.acceptance(texts, progress))
        acceptance += found
        if plan.draft_lengths:
            speeds += models.speeds(prompts, temperature, found, progress)
    summary = summarize_acceptance(acceptance)
    costs = _costs(speeds)
    return {
        "settings": {
            "target": Path(plan.target).name,
            "drafts": {name: models.size(name) for name in plan.names},
            "dtype": str(models.dtype).removeprefix("torch."),
            "num_prompts": len(prompts),
            "max_tokens": plan.max_tokens,
        },
        "acceptance": summary,
        "speeds": speeds,
        "oracle": list(_oracle(summary, costs)),
        "lenience": list(_lenience(summary, costs)),
    }


class _Models:
    """The target with all drafts."""

    def __init__(self, plan: MeasurementPlan) -> None:
        self._plan = plan
        model = load_model(plan.target, resolve_dtype(plan.dtype), resolve_device(None))
        self._tokenizer = load_tokenizer(plan.target)
        self._target = Runner(model, num_slots=MAX_BATCH)
        self._eos_token_ids = get_eos_token_ids(model)
        self._runners: dict[str, Runner] = {}
        self._lookup: dict[str, Drafter] = {}
        for name, each in plan.names.items():
            if each in LOOKUP:
                config = SpeculationConfig(drafters=(each,))
                self._lookup[name] = make_drafters(config, chain=True, model=plan.target)[each]
            else:
                check_same_vocabulary(self._tokenizer, load_tokenizer(each))
                draft = load_model(each, model.dtype, model.device)
                self._runners[name] = Runner(draft, num_slots=MAX_BATCH)
        self._random = self._engine(RANDOM, RandomDrafter(self._target.vocab_size))

    @property
    def dtype(self) -> Any:
        """The dtype of all models."""
        return self._target.model.dtype

    def size(self, name: str) -> int:
        """The parameters of a draft model; 0 for a lookup drafter."""
        if name not in self._runners:
            return 0
        return sum(weight.numel() for weight in self._runners[name].model.parameters())

    def prompt(self, question: Question) -> TokenPrompt:
        """A question as a chat message."""
        message = [{"role": "user", "content": question.text}]
        return TokenPrompt(question.category, tuple(encode(self._tokenizer, message)))

    def texts(
        self, prompts: Sequence[TokenPrompt], temperature: float, progress: Progress
    ) -> list[TargetText]:
        """Outputs of the target."""
        title = f"outputs at temperature {temperature:g}"
        return generate_texts(
            self._random,
            prompts,
            temperature,
            self._plan.max_tokens,
            lambda num: progress(title, num, len(prompts)),
        )

    def acceptance(self, texts: Sequence[TargetText], progress: Progress) -> Iterator[TextAcceptance]:
        """The acceptance of all drafts, and of the simplest ones, along outputs."""
        vocab_size = self._target.vocab_size
        models = [ModelDistribution(name, each, vocab_size) for name, each in self._runners.items()]
        lookup = [LookupDistribution(name, each) for name, each in self._lookup.items()]
        counted = [
            CountedDistribution(name, texts, bigrams=name == "bigram") for name in ("bigram", "unigram")
        ]
        drafts: list[DraftDistribution] = [*models, *lookup, *counted, UniformDistribution()]
        for number, text in enumerate(texts):
            progress(f"acceptance at temperature {text.temperature:g}", number, len(texts))
            yield from measure_acceptance(self._target, drafts, text)

    def speeds(
        self,
        prompts: Sequence[TokenPrompt],
        temperature: float,
        acceptance: Sequence[TextAcceptance],
        progress: Progress,
    ) -> list[dict[str, Any]]:
        """Predicted and measured speedups at a temperature."""
        drafters: dict[str, Drafter] = {
            **{name: ModelDrafter(each, self._target.vocab_size) for name, each in self._runners.items()},
            **self._lookup,
        }
        engines = {name: self._engine(name, each) for name, each in drafters.items()}
        title = f"speed at temperature {temperature:g}"
        times = time_decoding(
            engines | {RANDOM: self._random},
            prompts,
            self._plan.draft_lengths,
            temperature,
            self._plan.max_tokens,
            lambda done, total: progress(title, done, total),
        )
        return [
            row
            for name in drafters
            for row in compare_speeds(
                name, temperature, times, [each for each in acceptance if each.draft == name]
            )
        ]

    def _engine(self, name: str, drafter: Drafter) -> Engine:
        """An engine whose drafts have the length that a request asks for."""
        return Engine(
            self._target,
            {MODEL if name in self._runners else name: drafter},
            trees=False,
            eos_token_ids=self._eos_token_ids,
            config=SpeculationConfig(adaptive=False, verifier="rejection"),
        )


def _costs(speeds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median cost of a draft token of every drafter, relative to a step without drafts."""
    costs: dict[str, list[float]] = defaultdict(list)
    for row in speeds:
        costs[row["draft"]].append(row["c"])
    return {name: median(each) for name, each in costs.items()}


def _oracle(summary: Sequence[Mapping[str, Any]], costs: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """The speedup with the best draft length, and with an oracle for the draft length (section 3.5)."""
    for row in summary:
        if row["category"] == ALL and row["draft"] in costs:
            alpha, c = row["alpha"], costs[row["draft"]]
            best = theory.best_gamma(alpha, c)
            yield {
                "draft": row["draft"],
                "temperature": row["temperature"],
                "alpha": alpha,
                "c": c,
                "draft_length": best,
                "speedup": theory.speedup(alpha, best, c),
                "oracle": theory.oracle_speedup(alpha, c),
            }


def _lenience(summary: Sequence[Mapping[str, Any]], costs: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Acceptance, theoretical speedup and distance from p by lenience (table 5)."""
    for row in summary:
        if row["category"] != ALL or row["draft"] not in costs:
            continue
        c = costs[row["draft"]]
        lossless = {"lenience": 1.0, "alpha": row["alpha"], "distance": 0.0}
        for each in (lossless, *row["lenient"]):
            best = theory.best_gamma(each["alpha"], c)
            named = {"draft": row["draft"], "temperature": row["temperature"], **each, "draft_length": best}
            yield named | {"speedup": theory.speedup(each["alpha"], best, c)}
