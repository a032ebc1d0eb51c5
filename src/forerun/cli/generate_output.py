"""Outputs of `forerun generate` on the terminal: streamed or together, with a closing line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from forerun.cli.console import progress_bar
from forerun.exactness import guarantee, unseeded_guarantee

if TYPE_CHECKING:
    from forerun.cli.token_display import TokenDisplay
    from forerun.engines.local.llm import LLM
    from forerun.engines.local.request import Result, Stats
    from forerun.engines.local.trace_writer import TraceWriter
    from forerun.models.tokenization import PromptLike


def answer(
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


def answer_all(
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
    """The guarantee for the output, relative to non-speculative decoding in the same precision."""
    dtype = str(llm.engine.target.model.dtype).removeprefix("torch.")
    if not llm.engine.speculator.drafters or settings.get("max_draft") == 0:
        return f"{dtype}: non-speculative decoding"
    is_unseeded = settings.get("temperature", 0.0) > 0 and settings.get("seed") is None
    return (unseeded_guarantee if is_unseeded else guarantee)(dtype, invariant=llm.invariant)


def _summarize(results: Sequence[Result], exactness: str) -> None:
    """Print errors and the closing line on standard error."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    for result in results:
        if result.error is not None:
            console.print(f"prompt {int(result.id) + 1}: {result.error}", style="red", markup=False)
    summary = f"{_counts([result.stats for result in results])} · {exactness}"
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
