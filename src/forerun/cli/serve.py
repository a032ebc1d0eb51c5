"""`forerun serve`: `vllm serve` with speculative decoding."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.console import report_errors
from forerun.exactness import guarantee, unseeded_guarantee

if TYPE_CHECKING:
    from forerun.config import SpeculationConfig
    from forerun.engines.vllm.runner_choice import RunnerChoice

EPILOG: Final = """
Example: forerun serve Qwen/Qwen3-0.6B --port 8000 --share-outputs

Exactness: forerun serve ./model --dtype float32

Draft model: forerun serve ./model --draft-model ./small-model

Speculator: forerun serve ./model --spec-method eagle3 --spec-model ./head --spec-tokens 5
"""

_DRAFTING: Final = "Drafting"
_LAUNCH: Final = "Launch"


def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="The target model: a directory, or a name on the hub.", show_default=False)
    ],
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="Drafter to use: auto (suffix, grammar, and ngram for requests that name it), a name, or"
            " module:class. Repeatable: all of them draft for requests that name none.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            help="A smaller model with the same vocabulary, as a drafter.", rich_help_panel=_DRAFTING
        ),
    ] = None,
    share_outputs: Annotated[
        bool,
        typer.Option(
            "--share-outputs",
            help="Draft from earlier outputs too, within one cache_salt.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of `forerun corpus build` to draft from. Repeatable.", rich_help_panel=_DRAFTING
        ),
    ] = None,
    speculation: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="All speculation settings as a JSON file; the options above override it.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant",
            help="Invariant mode: identical output in every dtype, bit for bit, with and without speculation"
            " and in any batch; slower. On GPUs it sets VLLM_BATCH_INVARIANT=1, which is untested there.",
            rich_help_panel=_LAUNCH,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the vLLM command to run, and exit.", rich_help_panel=_LAUNCH),
    ] = False,
) -> None:
    """Serve a model with vLLM and lossless speculative decoding. All flags of `vllm serve` are accepted too.

    In float32, greedy and seeded requests get identical tokens with and without speculation, and other
    requests the same distribution. In bfloat16 and float16, unless invariant mode is on, near-ties of logits
    can resolve differently when the number of rows in a forward pass changes, with and without speculation,
    and outputs can differ from there on. The summary at the start states what holds in the precision served.
    """
    from forerun.config import SpeculationConfig
    from forerun.drafters.registry import check_known
    from forerun.engines.vllm.launch import launch_environment, serve_command, serve_flags
    from forerun.engines.vllm.runner_choice import choose_runner
    from forerun.engines.vllm.speculative_config import given_speculative_config, speculator_name
    from forerun.engines.vllm.static_table import start_build
    from forerun.errors import ConfigurationError

    with report_errors():
        if model.startswith("-"):
            raise ConfigurationError(f"the model comes first: forerun serve MODEL {model} ...")
        speculator = given_speculative_config(model, context.args)
        given = {
            "drafters": tuple(drafter or ()),
            "draft_model": draft_model or speculator_name(speculator),
            "share_outputs": share_outputs,
            "corpora": tuple(str(file.resolve()) for file in corpus or ()),
            "invariant": invariant,
        }
        base = SpeculationConfig.parse(speculation) if speculation else SpeculationConfig()
        config = SpeculationConfig(
            **{**base.model_dump(), **{key: value for key, value in given.items() if value}}
        )
        check_known(config)
        choice = choose_runner(context.args)
        command = serve_command(model, serve_flags(model, config, context.args, choice.runner))
        environment = launch_environment(choice.runner, invariant=bool(config.invariant))
        if dry_run:
            variables = [f"{name}={value}" for name, value in environment.items()]
            typer.echo(shlex.join(["env", *variables, *command]))
            return
        _check(model, config, context.args)
    _print_summary(model, config, context.args, choice, start_build(model, config))
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **environment})  # noqa: S606


def _check(model: str, config: SpeculationConfig, flags: list[str]) -> None:
    """Raise for what would fail once vLLM has started; vLLM's version is checked where it runs."""
    from importlib.util import find_spec

    from forerun.engines.vllm.preflight import check_launch
    from forerun.errors import MissingExtra

    if find_spec("vllm") is None:
        raise MissingExtra("vLLM", "vllm")
    check_launch(model, config, flags)


def _print_summary(
    model: str, config: SpeculationConfig, flags: list[str], choice: RunnerChoice, static_table: str
) -> None:
    """Print how the server will speculate, before vLLM's own lines."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from forerun.engines.vllm.precision import served_dtype
    from forerun.engines.vllm.speculative_config import MAX_CHAIN_LENGTH, given_speculative_config

    speculator = given_speculative_config(model, flags) or {}
    max_length = speculator.get("num_speculative_tokens", MAX_CHAIN_LENGTH)
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("model", escape(model)),
        ("model runner", escape(choice.summary)),
        ("drafters", escape(", ".join(config.names))),
        ("draft model", escape(config.draft_model or "none")),
        (
            "draft length",
            f"0 to {min(config.max_draft, max_length)} tokens per step, chosen by predicted gain",
        ),
        ("drafts from", escape(_sources(config))),
        ("static table", escape(static_table)),
        *output_rows(config, served_dtype(model, flags)),
        ("per request", "vllm_xargs: forerun_max_draft, forerun_drafter, forerun_lenience, forerun_adaptive"),
    ):
        table.add_row(f"[bold]{name}[/]", value)
    console = Console(stderr=True, highlight=False)
    console.print("[bold green]forerun[/]: vLLM with speculative decoding", table, sep="\n")


def _sources(config: SpeculationConfig) -> str:
    sources = ["the request's own text", "its recycled logits"]
    if config.share_outputs:
        sources.append("earlier outputs within one cache_salt")
    sources += [f"the corpus {Path(file).name}" for file in config.corpora]
    return ", ".join(sources)


def output_rows(config: SpeculationConfig, dtype: str | None) -> list[tuple[str, str]]:
    """How outputs relate to non-speculative decoding in a dtype; None is a dtype that vLLM will choose."""
    if config.lenience < 1:
        return [("output", f"[red]lossy: lenience {config.lenience}[/]")]
    return [
        ("greedy, seeded output", guarantee(dtype, invariant=bool(config.invariant))),
        ("unseeded output", unseeded_guarantee(dtype, invariant=bool(config.invariant))),
    ]
