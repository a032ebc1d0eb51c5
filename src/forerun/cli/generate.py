"""`forerun generate`: answer prompts with a model of transformers, the same words sooner."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.console import counting, told

if TYPE_CHECKING:
    from rich.console import Console

    from forerun.engines.local.llm import LLM
    from forerun.engines.local.request import Result, Stats, Update
    from forerun.engines.local.trace import Trace
    from forerun.models.text import Prompt


def generate(
    model: Annotated[str, typer.Argument(help="A causal language model: a directory, or a name.")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="What to continue; may be repeated.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="A prompt a line, as text or JSON (`prompt`, `turns`)."
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts are questions to a chat model.")] = False,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="Who guesses: auto, none, ngram, suffix, model:PATH, module:class; may be repeated."
        ),
    ] = None,
    share_outputs: Annotated[
        bool, typer.Option("--share-outputs", help="Guess from the answers to earlier prompts too.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens; 0 is all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The same seed says the same words.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; may be repeated.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32; the model's own if left out.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; a GPU if there is one, if left out.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Prompts that are answered together.")] = 16,
    max_draft: Annotated[int | None, typer.Option(min=0, help="The most guesses a pass; 0 is none.")] = None,
    chain: Annotated[bool, typer.Option("--chain", help="Guess chains instead of trees.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Colour what was guessed: kept green, corrected blue, dropped red.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write every round to this file; see forerun trace.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Answer prompts, several tokens a pass: what the model would have said is kept, the rest is dropped."""
    settings = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": tuple(stop or ()),
        "max_draft": max_draft,
    }
    with told():
        asked = _prompts(prompt, prompts, chat)
        llm = _load(
            model,
            drafter or "auto",
            share_outputs,
            dtype=dtype,
            device=device,
            max_batch=1 if show else batch,
            tree=not chain,
        )
        with _tracing(trace, llm) as tracer:
            if show or (len(asked) == 1 and not as_json):
                results = [_answer(llm, each, settings, tracer, show=show, as_json=as_json) for each in asked]
            else:
                results = _answer_all(llm, asked, settings, tracer, as_json=as_json)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _prompts(given: Sequence[str] | None, file: Path | None, chat: bool) -> list[Prompt]:
    """What to answer: given, of a file, or what comes in by standard input."""
    from forerun.errors import UnreadablePrompts

    asked: list[Prompt] = list(given or ())
    if file is not None:
        from forerun.audit.prompts import read_prompts

        asked += [list(each.ids) or each.text for each in read_prompts(file)]
    if given is None and file is None:
        if sys.stdin.isatty():
            raise UnreadablePrompts("nothing to answer: give --prompt TEXT, --prompts FILE, or pipe text in")
        asked = [sys.stdin.read().rstrip("\n")]
    if chat:
        asked = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in asked]
    return asked


def _load(model: str, drafter: str | list[str], share_outputs: bool, **options: Any) -> LLM:
    """The model, with a word while it is loaded."""
    from rich.console import Console

    from forerun.config import SpeculationConfig

    with Console(stderr=True).status(f"loading {Path(model).name or model}"):
        from forerun.engines.local.llm import LLM

        return LLM(model, drafter, config=SpeculationConfig(share_outputs=share_outputs), **options)


@contextmanager
def _tracing(file: Path | None, llm: LLM) -> Iterator[Trace | None]:
    """Where rounds are written to, if anywhere."""
    if file is None:
        yield None
        return
    from forerun.engines.local.trace import Trace

    with file.open("w", encoding="utf-8") as opened:
        yield Trace(opened, llm.tokenizer)


def _answer(
    llm: LLM, prompt: Prompt, settings: dict[str, Any], tracer: Trace | None, *, show: bool, as_json: bool
) -> Result:
    """Answer one prompt as it comes, in colours or plainly, and say what it took."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    showing = _Showing(console, llm.tokenizer) if show else None
    if show and isinstance(prompt, str):
        console.print(prompt, end="", style="dim", markup=False)
    for update in llm.stream([prompt], tracer=tracer, **settings):
        if showing is not None:
            showing.update(update)
        else:
            console.print(update.text, end="", markup=False)
        result = update.result
    assert result is not None
    console.print()
    if as_json:
        typer.echo(json.dumps(result.as_json(), ensure_ascii=False))
    _tell(Console(stderr=True, highlight=False), [result])
    return result


def _answer_all(
    llm: LLM, prompts: Sequence[Prompt], settings: dict[str, Any], tracer: Trace | None, *, as_json: bool
) -> list[Result]:
    """Answer many prompts together, then print them in order."""
    from rich.console import Console
    from rich.rule import Rule

    with counting("answering", len(prompts)) as progress:
        results = llm.generate(prompts, progress=progress, tracer=tracer, **settings)
    console = Console(highlight=False, soft_wrap=True)
    for number, result in enumerate(results, start=1):
        if as_json:
            typer.echo(json.dumps(result.as_json(), ensure_ascii=False))
            continue
        console.print(Rule(f"{number}", align="left", style="dim"))
        console.print(result.text, markup=False)
    _tell(Console(stderr=True, highlight=False), results)
    return results


class _Showing:
    """Tokens in colours as they stream: figure 1 of the paper."""

    def __init__(self, console: Console, tokenizer: Any) -> None:
        from forerun.models.text import Spelling

        self._console = console
        self._tokenizer = tokenizer
        self._spelling = Spelling(tokenizer)

    def update(self, update: Update) -> None:
        """Guesses kept in green, the first dropped ones struck through in red, the model's own in blue."""
        from forerun.engines.local.stories import best_dropped
        from forerun.engines.local.trace import own_words
        from forerun.models.text import spell

        kept = own_words(update)
        for place, token in enumerate(update.token_ids):
            if place == len(kept):
                nodes = best_dropped(update.draft.parents.tolist(), kept)
                dropped = spell(self._tokenizer, update.draft.tokens[nodes].tolist())
                self._say(dropped.replace("\n", "⏎"), "red strike dim")
            self._say(self._spelling.add(token), "green" if place < len(kept) else "bold blue")
        if update.result is not None:
            self._say(self._spelling.rest(), "bold blue")

    def _say(self, text: str, style: str) -> None:
        self._console.print(text, end="", style=style, markup=False)


def _tell(console: Console, results: Sequence[Result]) -> None:
    """A closing line: what it took, and what went wrong."""
    for result in results:
        if result.error is not None:
            console.print(f"prompt {int(result.id) + 1}: {result.error}", style="red", markup=False)
    console.print(_closing([result.stats for result in results]), style="dim")


def _closing(stats: Sequence[Stats]) -> str:
    """Tokens, target passes, tokens per pass, acceptance, time; of several answers, those of each."""
    num_tokens = sum(each.num_tokens for each in stats)
    num_passes = sum(each.num_passes for each in stats)
    num_guesses = sum(each.num_guesses for each in stats)
    num_accepted = sum(each.num_accepted for each in stats)
    alone = len(stats) == 1
    parts = [
        f"{num_tokens} tokens in {num_passes} target passes"
        if alone
        else f"{num_tokens} tokens in {len(stats)} answers"
    ]
    if num_passes:
        parts.append(f"{num_tokens / num_passes:.2f} tokens a pass")
    if num_guesses:
        parts.append(f"{num_accepted} of {num_guesses} guesses stood ({num_accepted / num_guesses:.0%})")
    if alone:
        parts.append(f"{stats[0].seconds:.1f} s")
    return " · ".join(parts)
