"""`forerun generate`: speculative decoding with a transformers model."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.cli.console import check_writable, progress_bar, report_errors
from forerun.errors import UnreadableModel

if TYPE_CHECKING:
    from forerun.cli.startup_progress import StartupProgress
    from forerun.cli.token_display import TokenDisplay
    from forerun.engines.local.llm import LLM
    from forerun.engines.local.request import Result, Stats
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
            help="A file with a prompt per line, as text or JSON (`prompt`, `turns`).",
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
            help="bfloat16, float16 or float32; the model's own if left out."
            " Output is identical to non-speculative decoding in float32 only."
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
    distribution. In bfloat16 and float16, near-ties of logits can resolve differently when the number of rows
    in a forward pass changes, so the output may differ from non-speculative decoding there.

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
    }
    with report_errors():
        if trace is not None:
            check_writable(trace)
        asked = _prompts(prompt, prompts, num_prompts, chat)
        with _startup_progress() as progress:
            llm = _load(
                progress,
                model,
                drafter or "auto",
                share_outputs,
                dtype=dtype,
                device=device,
                max_batch=1 if show else concurrency,
                max_length=max_length,
                tree=not chain,
            )
            if show and llm.tokenizer is None:
                raise UnreadableModel(f"--show needs a tokenizer, and {model} has none; leave out --show")
            with _tracing(trace, llm) as tracer:
                if show or (len(asked) == 1 and not as_json):
                    results = [
                        _answer(llm, each, settings, tracer, show=show, as_json=as_json) for each in asked
                    ]
                else:
                    with progress.without_spinner():
                        results = _answer_all(llm, asked, settings, tracer, as_json=as_json)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _prompts(
    given: Sequence[str] | None, file: Path | None, num_prompts: int | None, chat: bool
) -> list[PromptLike]:
    """The prompts: given, from a file, or else standard input."""
    from forerun.errors import UnreadablePrompts

    asked: list[PromptLike] = list(given or ())
    if file is not None:
        from forerun.audit.prompts import read_prompts

        asked += [list(each.ids) or each.text for each in read_prompts(file, num_prompts, allow_empty=True)]
    if given is None and file is None:
        if sys.stdin.isatty():
            raise UnreadablePrompts("there is no prompt: give --prompt TEXT, --prompts FILE, or pipe text in")
        asked = [sys.stdin.read().rstrip("\n")]
    if chat:
        asked = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in asked]
    return asked


@contextmanager
def _startup_progress() -> Iterator[StartupProgress]:
    """Report one-time work on standard error."""
    from forerun.cli.startup_progress import startup_progress

    progress = startup_progress(logging.getLogger("forerun.engines.local.startup"))
    with progress as handler:
        yield handler


def _load(
    progress: StartupProgress, model: str, drafter: str | list[str], share_outputs: bool, **options: Any
) -> LLM:
    """The model, with a spinner while it is loaded."""
    from forerun.config import SpeculationConfig

    with progress.spinning(f"loading {Path(model).name or model}"):
        from forerun.engines.local.llm import LLM

        return LLM(model, drafter, config=SpeculationConfig(share_outputs=share_outputs), **options)


@contextmanager
def _tracing(file: Path | None, llm: LLM) -> Iterator[TraceWriter | None]:
    """The writer of the trace, if one is asked for."""
    if file is None:
        yield None
        return
    from forerun.engines.local.trace_writer import TraceWriter

    with file.open("w", encoding="utf-8") as opened:
        yield TraceWriter(opened, llm.tokenizer)


def _answer(
    llm: LLM,
    prompt: PromptLike,
    settings: dict[str, Any],
    tracer: TraceWriter | None,
    *,
    show: bool,
    as_json: bool,
) -> Result:
    """Stream the output of one prompt, then print its summary."""
    display: TokenDisplay | None = None
    for update in llm.stream([prompt], tracer=tracer, **settings):
        if show:
            display = display or _display(llm, prompt, err=as_json)
            display.update(update)
        else:
            typer.echo(update.text, nl=False)
        result = update.result
    assert result is not None
    typer.echo(err=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_json(), ensure_ascii=False))
    _summarize([result], _guarantee(llm, settings))
    return result


def _display(llm: LLM, prompt: PromptLike, *, err: bool) -> TokenDisplay:
    """The display of a prompt's steps: in colours behind the prompt, or marked behind a legend."""
    from rich.console import Console
    from rich.text import Text

    from forerun.cli.token_display import LEGEND, ColourWriter, MarkWriter, TokenDisplay, has_colours

    console = Console(highlight=False, soft_wrap=True, stderr=err)
    if not has_colours(console):
        typer.echo(LEGEND, err=err)
        return TokenDisplay(llm.tokenizer, MarkWriter(err=err))
    if isinstance(prompt, str):
        console.print(Text(prompt, style="dim"), end="")
    return TokenDisplay(llm.tokenizer, ColourWriter(console))


def _answer_all(
    llm: LLM,
    prompts: Sequence[PromptLike],
    settings: dict[str, Any],
    tracer: TraceWriter | None,
    *,
    as_json: bool,
) -> list[Result]:
    """Decode many prompts together, then print their outputs in order."""
    from rich.console import Console
    from rich.rule import Rule

    with progress_bar("decoding", len(prompts)) as progress:
        results = llm.generate(prompts, progress=progress, tracer=tracer, **settings)
    console = Console(highlight=False)
    for number, result in enumerate(results, start=1):
        if as_json:
            typer.echo(json.dumps(result.as_json(), ensure_ascii=False))
            continue
        console.print(Rule(f"{number}", align="left", style="dim"))
        typer.echo(result.text)
    _summarize(results, _guarantee(llm, settings))
    return results


def _guarantee(llm: LLM, settings: Mapping[str, Any]) -> str:
    """What holds for the output, compared with non-speculative decoding in the same precision."""
    dtype = str(llm.engine.target.model.dtype).removeprefix("torch.")
    if not llm.engine.speculator.drafters or settings.get("max_draft") == 0:
        return f"{dtype}: non-speculative decoding"
    exact = dtype in {"float32", "float64"}
    if settings.get("temperature", 0.0) > 0 and settings.get("seed") is None:
        limit = "" if exact else f" up to {dtype} rounding"
        return f"{dtype}: distribution of non-speculative decoding{limit}"
    if exact:
        return f"{dtype}: output identical to non-speculative decoding"
    differs = "near-ties of logits may resolve differently from non-speculative decoding"
    return f"{dtype}: {differs}; identical with --dtype float32"


def _summarize(results: Sequence[Result], guarantee: str) -> None:
    """Print errors and the closing line on standard error."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    for result in results:
        if result.error is not None:
            console.print(f"prompt {int(result.id) + 1}: {result.error}", style="red", markup=False)
    summary = f"{_counts([result.stats for result in results])} · {guarantee}"
    console.print(summary, style="dim", markup=False)


def _counts(stats: Sequence[Stats]) -> str:
    """Tokens, steps, tokens per step, acceptance rate, and for a single output its time."""
    num_tokens = sum(each.num_tokens for each in stats)
    num_steps = sum(each.num_steps for each in stats)
    num_drafted = sum(each.num_draft_tokens for each in stats)
    num_accepted = sum(each.num_accepted for each in stats)
    alone = len(stats) == 1
    parts = [
        f"{num_tokens} tokens in {num_steps} steps"
        if alone
        else f"{num_tokens} tokens in {len(stats)} outputs"
    ]
    if num_steps:
        parts.append(f"{num_tokens / num_steps:.2f} tokens per step")
    if num_drafted:
        rate = num_accepted / num_drafted
        parts.append(f"{num_accepted} of {num_drafted} draft tokens accepted ({rate:.0%})")
    if alone:
        parts.append(f"{stats[0].seconds:.1f} s")
    return " · ".join(parts)
