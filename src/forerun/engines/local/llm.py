"""Speculative generation with a transformers model: `LLM` keeps it loaded, `generate` is one call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Many
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

from forerun.config import SpeculationConfig
from forerun.core.tensors import torch
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.registry import make_drafters, warm_up
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Request, Result, Update
from forerun.engines.local.startup import log_compilation
from forerun.engines.local.trace_writer import TraceWriter
from forerun.errors import ConfigurationError, ForerunError, InvalidRequest, UnreadableModel
from forerun.models.loading import device_of, ends_of, load_model, load_tokenizer
from forerun.models.runner import Runner
from forerun.models.tokenization import PromptLike, check_same_vocabulary, encode
from forerun.types import Drafter, SamplingParams

Who: TypeAlias = str | Drafter | Many[str | Drafter]
"""Who guesses: `auto`, `none`, names of drafters, `model:PATH`, `module:class`, drafters themselves."""

BRANCHES: Final = 3
"""Children of a node that a draft model's tree goes on with."""

LONGEST: Final = 8192
"""Tokens of a text that room is kept for, unless told otherwise."""


class LLM:
    """A model that stays loaded.

    `model` is a directory, a name, or a model of transformers (which comes with its `tokenizer`, if text is
    wanted). By name, it is loaded onto `device`: a GPU if there is one, unless given. Memory for `max_batch`
    requests of `max_length` tokens is allocated at the start. With `tree` off, drafts are chains. `config`
    has every other setting of speculation; `drafter` takes precedence over its drafters unless it is `auto`.

    In float32, greedy and seeded output is identical to non-speculative decoding, token for token, and
    unseeded output has its distribution. In bfloat16 and float16, logits change in their last bits with the
    number of rows in a forward pass, so near-ties can resolve differently and the output may differ from
    non-speculative decoding there.
    """

    def __init__(  # noqa: PLR0913  (what people may set, by name)
        self,
        model: str | Path | Any,
        drafter: Who = "auto",
        *,
        tokenizer: Any = None,
        dtype: str | torch.dtype | None = None,
        device: str | None = None,
        max_batch: int = 16,
        max_length: int | None = None,
        tree: bool = True,
        config: SpeculationConfig | None = None,
    ) -> None:
        by_name = isinstance(model, str | Path)
        if device is not None and not by_name:
            raise ConfigurationError(
                "device is for a model by name: one that is handed over stays where it is"
            )
        target: Any = load_model(model, _dtype(dtype), device_of(device)) if by_name else model
        self.tokenizer = _tokenizer(model) if by_name and tokenizer is None else tokenizer
        config, given, usual = _named(drafter, config or SpeculationConfig())
        with log_compilation():
            runner = Runner(target, num_slots=max_batch, max_length=max_length or LONGEST)
            self.engine = Engine(
                runner,
                self._drafters(config, given, runner, tree),
                usual=usual,
                tokenizer=self.tokenizer,
                ends=ends_of(target),
                config=config,
            )
        self._ids = count()

    def _drafters(
        self, config: SpeculationConfig, given: Mapping[str, Drafter], target: Runner, tree: bool
    ) -> dict[str, Drafter]:
        """The drafters that are named and given, warmed up; none without draft tokens."""
        if not config.max_draft:
            return {}
        drafters = make_drafters(config, chain=not tree) | {
            name: warm_up(each) for name, each in given.items()
        }
        if config.draft_model is not None:
            drafters["model"] = self._draft_model(config.draft_model, target, tree)
        return drafters

    def _draft_model(self, path: str, target: Runner, tree: bool) -> Drafter:
        """A drafter that runs a smaller model where the target is, with as many slots."""
        if self.tokenizer is not None:
            check_same_vocabulary(self.tokenizer, _draft_tokenizer(path))
        model = load_model(path, target.model.dtype, target.model.device)
        draft = Runner(model, num_slots=target.cache.num_slots, max_length=target.max_length)
        return ModelDrafter(draft, target.vocab_size, branches=BRANCHES if tree else 1)

    @overload
    def generate(self, prompts: str, **settings: Any) -> Result: ...

    @overload
    def generate(
        self, prompts: Many[PromptLike], *, progress: Callable[[int], None] = ..., **settings: Any
    ) -> list[Result]: ...

    def generate(
        self,
        prompts: str | Many[PromptLike],
        *,
        progress: Callable[[int], None] = lambda _: None,
        **settings: Any,
    ) -> Result | list[Result]:
        """Answer prompts: a list for a list, one answer for one text.

        `settings` are those of `SamplingParams` (temperature, seed, top_p, ...) and of `Request` (max_tokens,
        stop, max_draft, ...); temperature is 0 unless given. In a list, a prompt that cannot be answered
        fails alone: its result says why.
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
        self, prompts: Many[PromptLike], *, tracer: TraceWriter | None = None, **settings: Any
    ) -> Generator[Update, None, None]:
        """Answer prompts and show every step on the way; ids are numbers, in the order of the prompts."""
        if self.engine.num_unfinished:
            raise InvalidRequest("this LLM is answering other prompts: read their stream to its end first")
        make = _maker({"temperature": 0.0, **settings})
        names: list[str] = []
        try:
            for prompt in prompts:
                names.append(str(next(self._ids)))
                refused = self._add(names[-1], prompt, make, tracer)
                if refused is not None:
                    yield refused
            for update in self.engine.stream():
                if tracer is not None:
                    tracer.update(update)
                yield update
        finally:  # whoever reads may stop reading
            for name in names:
                self.engine.cancel(name)
            list(self.engine.stream())

    def _add(
        self,
        name: str,
        prompt: PromptLike,
        make: Callable[[str, tuple[int, ...]], Request],
        tracer: TraceWriter | None,
    ) -> Update | None:
        """Ask the engine; an update that says why, if it cannot be asked that."""
        try:
            tokens = _encoded(self.tokenizer, prompt)
            self.engine.add(make(name, tuple(tokens)))
        except ForerunError as error:
            return Update(name, result=Result(name, "", (), "error", error=error))
        if tracer is not None:
            tracer.prompt(name, tokens)
        return None


@overload
def generate(model: str | Path | Any, prompts: str, drafter: Who = ..., **settings: Any) -> Result: ...


@overload
def generate(
    model: str | Path | Any, prompts: Many[PromptLike], drafter: Who = ..., **settings: Any
) -> list[Result]: ...


def generate(
    model: str | Path | Any,
    prompts: str | Many[PromptLike],
    drafter: Who = "auto",
    *,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    tokenizer: Any = None,
    max_length: int | None = None,
    config: SpeculationConfig | None = None,
    **settings: Any,
) -> Result | list[Result]:
    """Load a model, answer prompts, and free it; `LLM` keeps it, and documents the arguments that load it.

    `settings` are those of `LLM.generate`. Greedy and seeded output is identical to non-speculative decoding
    in float32; in bfloat16 and float16 near-ties of logits can resolve differently.
    """
    llm = LLM(
        model,
        drafter,
        dtype=dtype,
        device=device,
        tokenizer=tokenizer,
        max_length=max_length,
        config=config,
    )
    return llm.generate(prompts, **settings)


def _named(
    drafter: Who, config: SpeculationConfig
) -> tuple[SpeculationConfig, dict[str, Drafter], tuple[str, ...]]:
    """The configuration with whoever is named, the drafters that were given as they are, and who of all these
    guesses if a request does not say. `auto` is what the configuration says.
    """
    several: Many[str | Drafter] = [drafter] if isinstance(drafter, str | Drafter) else drafter
    if not several:
        raise ConfigurationError("nobody is named to guess: say auto, or none for plain decoding")
    names = [name.strip() for each in several if isinstance(each, str) for name in each.split(",")]
    given: dict[str, Drafter] = {}
    for each in several:
        if not isinstance(each, str):
            name = type(each).__name__
            given[name if name not in given else f"{name} {len(given) + 1}"] = each
    paths = [name.removeprefix("model:") for name in names if name.startswith("model:")]
    others = tuple(name for name in names if not name.startswith("model:"))
    if len(paths) > 1:
        raise ConfigurationError(f"one draft model at a time can guess; got {', '.join(paths)}")
    changes: dict[str, Any] = {"draft_model": paths[0]} if paths else {}
    if others == ("none",):
        changes["max_draft"] = 0
    elif others not in {(), ("auto",)}:
        changes["drafters"] = others
    elif paths and not others:
        changes["drafters"] = ("model",)
    config = SpeculationConfig(**{**config.model_dump(), **changes})
    by_name = ["suffix" if name == "auto" else name for name in config.drafters] if names else []
    return config, given, (*by_name, *given, "model")


def _encoded(tokenizer: Any, prompt: PromptLike) -> list[int]:
    """The token ids of a prompt, with an error of ours if there are none."""
    try:
        return encode(tokenizer, prompt)
    except ForerunError:
        raise
    except Exception as error:  # chat templates raise what they like
        raise InvalidRequest(f"the prompt cannot be read: {error}") from error


def _maker(settings: Mapping[str, Any]) -> Callable[[str, tuple[int, ...]], Request]:
    """Makes requests with these settings, some of which are about sampling; raises where one is unknown."""
    asked = dict(settings)
    known = {each.name for each in fields(SamplingParams)}
    sampling = SamplingParams(**{name: asked.pop(name) for name in known & asked.keys()})
    unknown = asked.keys() - {each.name for each in fields(Request)} | asked.keys() & {
        "id",
        "prompt",
        "sampling",
    }
    if unknown:
        raise InvalidRequest(f"no setting is called {min(unknown)!r}; see SamplingParams and Request")
    stop = asked.pop("stop", None) or ()
    asked["stop"] = (stop,) if isinstance(stop, str | int) else tuple(stop)
    return lambda name, prompt: Request(id=name, prompt=prompt, sampling=sampling, **asked)


def _tokenizer(model: str | Path) -> Any:
    """The tokenizer of a model, or None: token ids can be read without."""
    try:
        return load_tokenizer(model)
    except UnreadableModel:
        return None


def _draft_tokenizer(path: str) -> Any:
    """The tokenizer of a draft model, which is compared with the target's."""
    try:
        return load_tokenizer(path)
    except UnreadableModel as error:
        raise UnreadableModel(
            f"the draft model {path} has no tokenizer to compare with the target's:"
            " add its tokenizer's files to that directory"
        ) from error


def _dtype(given: str | torch.dtype | None) -> torch.dtype | None:
    """A precision by its name."""
    if given is None or isinstance(given, torch.dtype):
        return given
    dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(given, given), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(f"no precision is called {given!r}; there are bfloat16, float16, float32")
    return dtype
