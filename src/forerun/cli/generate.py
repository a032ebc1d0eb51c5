"""`forerun generate`: speculative decoding with a transformers model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.cli.console import check_writable, report_errors
from forerun.cli.generate_output import answer, answer_all
from forerun.errors import UnreadableModel
from forerun.prompts import PROMPT_FORMATS

if TYPE_CHECKING:
    from forerun.cli.startup_progress import StartupProgress
    from forerun.config import SpeculationConfig
    from forerun.engines.local.llm import LLM
    from forerun.engines.local.trace_writer import TraceWriter
    from forerun.models.tokenization import PromptLike

_SAMPLING: Final = "Sampling"
_SPECULATION: Final = "Speculation"
_OUTPUT: Final = "Output"


def generate(
    model: Annotated[str, typer.Argument(help="A causal language model: a directory, or a name.")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A prompt to continue; may be repeated.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help=f"A file of prompts: {PROMPT_FORMATS}.",
        ),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Decode only the first N prompts of the file.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send each prompt as a user message, in the model's chat template.")
    ] = False,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="Drafters: auto, none, ngram, suffix, model:PATH, module:class; may be repeated.",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    speculation: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Configuration of speculation (JSON), as for forerun serve; --drafter, --share-outputs and"
            " --invariant take precedence.",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    share_outputs: Annotated[
        bool,
        typer.Option(
            "--share-outputs",
            help="Draft from the outputs of earlier prompts too.",
            rich_help_panel=_SPECULATION,
        ),
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of output tokens per prompt.")] = 128,
    max_length: Annotated[
        int | None,
        typer.Option(min=8, help="Maximum tokens of prompt and output together; 8192 if left out."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 is greedy.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(help="Sample from the most likely tokens of this mass.", rich_help_panel=_SAMPLING),
    ] = 1.0,
    top_k: Annotated[
        int,
        typer.Option(
            help="Sample from this number of the most likely tokens; 0 is all.", rich_help_panel=_SAMPLING
        ),
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of sampling; makes the output reproducible.", rich_help_panel=_SAMPLING),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the output; may be repeated.", rich_help_panel=_SAMPLING),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32. If left out: the checkpoint's own, but float32 for a bfloat16"
            " checkpoint on a CPU without bfloat16 instructions."
        ),
    ] = None,
    invariant: Annotated[
        bool | None,
        typer.Option(
            "--invariant/--no-invariant",
            show_default=False,
            help="The same output, bit for bit, with and without speculation, in any batch and dtype. Needs a"
            " CPU. If left out: on in float32 on CPUs with MKL, where it costs no throughput.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU if there is one, if left out.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Prompts decoded in one batch.")] = 16,
    max_draft: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Maximum draft tokens per request and step; 0 disables speculation.",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    prediction: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Text that the outputs are expected to repeat in large part, such as a file to edit.",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    chain: Annotated[
        bool,
        typer.Option("--chain", help="Draft chains instead of trees.", rich_help_panel=_SPECULATION),
    ] = False,
    show: Annotated[
        bool,
        typer.Option(
            "--show",
            rich_help_panel=_OUTPUT,
            help="Show draft tokens: accepted green, rejected red, bonus and recovered tokens blue;"
            " without colours, rejected as [-token-] and bonus or recovered as {+token+}.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write every step to this file; see forerun trace.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per prompt and line.", rich_help_panel=_OUTPUT),
    ] = False,
) -> None:
    """Continue prompts with speculative decoding: draft tokens are verified several per forward pass.

    In float32, greedy and seeded output is identical to non-speculative decoding, and unseeded output has its
    distribution. In bfloat16 and float16, unless invariant mode is on, near-ties of logits can resolve
    differently when the number of rows in a forward pass changes, and the output can differ from
    non-speculative decoding from there on. The last line printed states what holds in the precision used.

    Example: `forerun generate MODEL --dtype float32 --prompt "One, two, three, one, two," --show`
    """
    settings = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": tuple(stop or ()),
        "max_draft": max_draft,
        "prediction": None if prediction is None else prediction.read_text(encoding="utf-8"),
    }
    with report_errors():
        if trace is not None:
            check_writable(trace)
        requested = _prompts(prompt, prompts, num_prompts, chat)
        with _startup_progress() as progress:
            llm = _load(
                progress,
                model,
                drafter or "auto",
                _config(speculation, share_outputs),
                dtype=dtype,
                device=device,
                max_batch=1 if show else concurrency,
                max_length=max_length,
                tree=not chain,
                invariant=invariant,
            )
            if show and llm.tokenizer is None:
                raise UnreadableModel(f"--show needs a tokenizer, and {model} has none; leave out --show")
            with _tracing(trace, llm) as tracer:
                if show or (len(requested) == 1 and not as_json):
                    results = [
                        answer(llm, each, settings, tracer, show=show, as_json=as_json) for each in requested
                    ]
                else:
                    with progress.without_spinner():
                        results = answer_all(llm, requested, settings, tracer, as_json=as_json)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _prompts(
    given: Sequence[str] | None, file: Path | None, num_prompts: int | None, chat: bool
) -> list[PromptLike]:
    """The prompts: given, from a file, or else standard input."""
    from forerun.errors import UnreadablePrompts

    found: list[PromptLike] = list(given or ())
    if file is not None:
        from forerun.prompts import read_prompt_file

        read = read_prompt_file(file, allow_empty=True)[:num_prompts]
        found += [list(each.ids) or each.text for each in read]
    if given is None and file is None:
        if sys.stdin.isatty():
            raise UnreadablePrompts("there is no prompt: give --prompt TEXT, --prompts FILE, or pipe text in")
        found = [sys.stdin.read().rstrip("\n")]
    if chat:
        found = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in found]
    return found


@contextmanager
def _startup_progress() -> Iterator[StartupProgress]:
    """Report one-time work and the default dtype on standard error."""
    from forerun.cli.startup_progress import startup_progress

    names = ("forerun.engines.local.startup", "forerun.models.loading")
    progress = startup_progress(*map(logging.getLogger, names))
    with progress as handler:
        yield handler


def _config(file: Path | None, share_outputs: bool) -> SpeculationConfig:
    """The configuration in a file, or the default one, with the outputs of earlier prompts if asked for."""
    from forerun.config import SpeculationConfig

    config = SpeculationConfig() if file is None else SpeculationConfig.parse(file)
    return config.model_copy(update={"share_outputs": True}) if share_outputs else config


def _load(
    progress: StartupProgress,
    model: str,
    drafter: str | list[str],
    config: SpeculationConfig,
    **options: Any,
) -> LLM:
    """The model, with a spinner while it is loaded."""
    with progress.spinning(f"loading {Path(model).name or model}"):
        from forerun.engines.local.llm import LLM

        return LLM(model, drafter, config=config, **options)


@contextmanager
def _tracing(file: Path | None, llm: LLM) -> Iterator[TraceWriter | None]:
    """The writer of the trace, if there is one."""
    if file is None:
        yield None
        return
    from forerun.engines.local.trace_writer import TraceWriter

    with file.open("w", encoding="utf-8") as opened:
        yield TraceWriter(opened, llm.tokenizer)
