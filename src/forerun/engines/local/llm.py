"""Speculative generation with a transformers model: `LLM` keeps it loaded, `generate` is one call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, overload

from forerun.config import SpeculationConfig
from forerun.core.beam_search import BeamSettings
from forerun.core.tensors import torch
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.registry import make_drafters, warm_up
from forerun.engines.local.beam_search import BeamModels, BeamResult, run_beam_search
from forerun.engines.local.draft_models import DraftModel, load_draft_models
from forerun.engines.local.drafter_spec import ChosenDrafters, DrafterSpec, resolve_drafters
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Request, Result, Update, request_factory
from forerun.engines.local.startup import log_compilation
from forerun.engines.local.trace_writer import TraceWriter
from forerun.engines.speculative_beams import DraftDepth
from forerun.errors import ConfigurationError, ForerunError, InvalidRequest, UnreadableModel
from forerun.models.invariant_runner import InvariantRunner, make_runner
from forerun.models.loading import (
    get_eos_token_ids,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
)
from forerun.models.runner import Runner
from forerun.models.tokenization import (
    PromptLike,
    encode,
    encode_prediction,
)
from forerun.types import Drafter

DEFAULT_MAX_LENGTH: Final = 8192
"""Maximum tokens of prompt and output together, unless `max_length` is given."""


class LLM:
    """A loaded model that generates with speculative decoding.

    `model` is a directory, a name, or a transformers model (pass its `tokenizer` too, to use text). A model
    by name is loaded onto `device`, by default a GPU if there is one, in `dtype`, by default that of its
    checkpoint, but float32 for a bfloat16 checkpoint on a CPU without bfloat16 instructions; with a model
    object, both raise `ConfigurationError`. Memory for `max_batch` requests of `max_length` tokens is
    allocated at the start. With `tree` off, drafts are chains. `config` has every other setting of
    speculation; `drafter` takes precedence over its drafters unless it is `auto`.

    In float32, greedy and seeded output is identical to non-speculative decoding, token for token, and
    unseeded output has its distribution. In bfloat16 and float16, logits change in their last bits with the
    number of rows in a forward pass, so near-ties can resolve differently and the output may differ from
    non-speculative decoding there. With `invariant`, or that key of `config`, logits depend on the tokens of
    their own request alone, bit for bit: output is the same with and without speculation and in any batch, in
    every dtype. It needs a CPU. If left out, it is on in float32 on a CPU with MKL, where it costs no
    throughput (prefill is slower); the attribute `invariant` is the mode in use.
    """

    def __init__(  # noqa: PLR0913  (keyword settings of the public API)
        self,
        model: str | Path | Any,
        drafter: DrafterSpec = "auto",
        *,
        tokenizer: Any = None,
        dtype: str | torch.dtype | None = None,
        device: str | None = None,
        max_batch: int = 16,
        max_length: int | None = None,
        tree: bool = True,
        invariant: bool | None = None,
        config: SpeculationConfig | None = None,
    ) -> None:
        by_name = isinstance(model, str | Path)
        if not by_name and (device is not None or dtype is not None):
            raise ConfigurationError(
                f"got a {type(model).__name__} with dtype={dtype} and device={device}, which apply to a model"
                " given by name; call .to(...) on a model object before passing it"
            )
        target: Any = load_model(model, resolve_dtype(dtype), resolve_device(device)) if by_name else model
        self.tokenizer = _tokenizer(model) if by_name and tokenizer is None else tokenizer
        self._draft_models: dict[str, DraftModel] = {}
        chosen = resolve_drafters(drafter, config or SpeculationConfig())
        config = chosen.config
        tree = tree and config.draft_trees is not False
        with log_compilation():
            runner = make_runner(
                target,
                invariant=config.invariant if invariant is None else invariant,
                num_slots=max_batch,
                max_length=max_length or DEFAULT_MAX_LENGTH,
            )
            self.engine = Engine(
                runner,
                self._drafters(chosen, runner, tree, str(model) if by_name else None),
                default_drafters=chosen.default,
                trees=tree,
                tokenizer=self.tokenizer,
                eos_token_ids=get_eos_token_ids(target),
                config=config,
            )
        self._ids = count()

    @property
    def invariant(self) -> bool:
        """Whether the engine runs in invariant mode."""
        return isinstance(self.engine.target, InvariantRunner)

    def _drafters(
        self, chosen: ChosenDrafters, target: Runner, tree: bool, model: str | None
    ) -> dict[str, Drafter]:
        """The drafters, warmed up; none if `max_draft` is 0."""
        if not chosen.config.max_draft:
            return {}
        self._draft_models = load_draft_models(
            chosen.models, target, self.tokenizer, tree=tree, run_ahead=chosen.config.run_ahead
        )
        return {
            **make_drafters(chosen.config, chain=not tree, model=model, vocab_size=target.vocab_size),
            **{name: warm_up(each) for name, each in chosen.objects.items()},
            **self._draft_models,
        }

    @overload
    def generate(self, prompts: str, **settings: Any) -> Result: ...

    @overload
    def generate(
        self, prompts: Sequence[PromptLike], *, progress: Callable[[int], None] = ..., **settings: Any
    ) -> list[Result]: ...

    def generate(
        self,
        prompts: str | Sequence[PromptLike],
        *,
        progress: Callable[[int], None] = lambda _: None,
        **settings: Any,
    ) -> Result | list[Result]:
        """Generate outputs: one result for one text, a list of results for a list of prompts.

        `settings` are those of `SamplingParams` (temperature, seed, top_p, ...) and of `Request` (max_tokens,
        stop, max_draft, ...); temperature is 0 unless given. `prediction` is text, or a list of token ids,
        that the outputs are expected to repeat in large part. In a list, an invalid prompt fails alone; its
        result has the error.
        """
        if isinstance(prompts, str):
            (result,) = self.generate([prompts], **settings)
            if result.error is not None:
                raise result.error
            return result
        results: dict[str, Result] = {}
        for update in self.stream(prompts, **settings):
            if update.result is not None:
                results[update.id] = update.result
                progress(len(results))
        return [results[name] for name in sorted(results, key=int)]

    def stream(
        self, prompts: Sequence[PromptLike], *, tracer: TraceWriter | None = None, **settings: Any
    ) -> Generator[Update, None, None]:
        """Generate outputs and yield every step's updates; ids are numbers in the order of the prompts."""
        if self.engine.num_unfinished:
            raise InvalidRequest("this LLM has an unfinished stream; exhaust or close it first")
        if settings.get("prediction") is not None:
            settings["prediction"] = encode_prediction(self.tokenizer, settings["prediction"])
        make_request = request_factory({"temperature": 0.0, **settings})
        names: list[str] = []
        try:
            for prompt in prompts:
                names.append(str(next(self._ids)))
                rejected = self._add(names[-1], prompt, make_request, tracer)
                if rejected is not None:
                    yield rejected
            if tracer is None:
                yield from self.engine.stream()
            else:
                yield from self._traced(tracer)
        finally:  # the caller may close the stream early
            for name in names:
                self.engine.cancel(name)
            list(self.engine.stream())

    def beam_search(self, prompts: Sequence[PromptLike], **settings: Any) -> list[BeamResult]:
        """Beam search, one prompt after the other; `settings` are those of `BeamSettings`.

        Outputs and scores are those of transformers' `generate`. With a draft model, a forward pass covers
        several steps where the draft's beams contain the target's.
        """
        search = BeamSettings(**{"end_tokens": self.engine.eos_token_ids, **settings})
        depth = DraftDepth(self.engine.speculator.controller.cost.at)
        draft = self._draft_models.get("model")
        runner = draft.runner if isinstance(draft, ModelDrafter) else None
        models = BeamModels(self.engine.target, runner, self.tokenizer)
        return [run_beam_search(models, prompt, search, depth) for prompt in prompts]

    def _traced(self, tracer: TraceWriter) -> Generator[Update, None, None]:
        """The updates of all steps, traced with the forward passes of target and draft models."""
        drafts = {
            name: each.runner if isinstance(each, ModelDrafter) else each
            for name, each in self._draft_models.items()
        }
        with tracer.recording({"target": self.engine.target, **drafts}):
            for update in self.engine.stream():
                tracer.update(update)
                yield update

    def _add(
        self,
        name: str,
        prompt: PromptLike,
        make_request: Callable[[str, tuple[int, ...]], Request],
        tracer: TraceWriter | None,
    ) -> Update | None:
        """Add a request to the engine; returns an update with the error if it is invalid."""
        try:
            tokens = encode(self.tokenizer, prompt)
            self.engine.add(make_request(name, tuple(tokens)))
        except ForerunError as error:
            return Update(name, result=Result(name, "", (), "error", error=error))
        if tracer is not None:
            tracer.prompt(name, tokens)
        return None


@overload
def generate(
    model: str | Path | Any, prompts: str, drafter: DrafterSpec = ..., **settings: Any
) -> Result: ...


@overload
def generate(
    model: str | Path | Any, prompts: Sequence[PromptLike], drafter: DrafterSpec = ..., **settings: Any
) -> list[Result]: ...


def generate(  # noqa: PLR0913  (keyword settings of the public API)
    model: str | Path | Any,
    prompts: str | Sequence[PromptLike],
    drafter: DrafterSpec = "auto",
    *,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    tokenizer: Any = None,
    max_length: int | None = None,
    invariant: bool | None = None,
    config: SpeculationConfig | None = None,
    **settings: Any,
) -> Result | list[Result]:
    """Load a model, generate outputs, and free it; `LLM` keeps it loaded and documents the arguments.

    `settings` are those of `LLM.generate`. Greedy and seeded output is identical to non-speculative decoding
    in float32 and with `invariant`; otherwise in bfloat16 and float16 near-ties of logits can resolve
    differently.
    """
    llm = LLM(
        model,
        drafter,
        dtype=dtype,
        device=device,
        tokenizer=tokenizer,
        max_length=max_length,
        invariant=invariant,
        config=config,
    )
    return llm.generate(prompts, **settings)


def _tokenizer(model: str | Path) -> Any:
    """The tokenizer of a model, or None: prompts of token ids need none."""
    try:
        return load_tokenizer(model)
    except UnreadableModel:
        return None
