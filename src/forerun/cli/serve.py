"""`forerun serve`: `vllm serve`, faster, with the same words."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from forerun.cli.console import told

if TYPE_CHECKING:
    from forerun.config import SpeculationConfig


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model that vLLM serves: a directory or a name.")],
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Who guesses: auto (suffix, ngram, grammar), or names; may be repeated."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="A smaller model with the same vocabulary that guesses too.")
    ] = None,
    share_outputs: Annotated[
        bool, typer.Option("--share-outputs", help="Guess from earlier answers, within one cache_salt.")
    ] = False,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="A corpus to guess from; may be repeated."),
    ] = None,
    speculation: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The configuration, as JSON.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the vLLM command that this stands for, and leave.")
    ] = False,
) -> None:
    """Serve a model with vLLM: the same words, sooner. All flags of `vllm serve` can be given as well."""
    from forerun.config import SpeculationConfig
    from forerun.drafters.registry import demand_known
    from forerun.engines.vllm.launch import serve_flags
    from forerun.errors import ConfigurationError

    given = {
        "drafters": tuple(drafter or ()),
        "draft_model": draft_model,
        "share_outputs": share_outputs,
        "corpora": tuple(str(file.resolve()) for file in corpus or ()),
    }
    with told():
        if model.startswith("-"):
            raise ConfigurationError(f"the model comes first: forerun serve MODEL {model} ...")
        base = SpeculationConfig.parse(speculation) if speculation else SpeculationConfig()
        config = SpeculationConfig(
            **{**base.model_dump(), **{key: value for key, value in given.items() if value}}
        )
        demand_known(config)
        flags = serve_flags(config, context.args)
        command = [sys.executable, "-m", "forerun.engines.vllm", "serve", model, *flags]
        if dry_run:
            typer.echo(shlex.join(["vllm", "serve", model, *flags]))
            return
        _demand_vllm()
    _tell(model, config)
    sys.stdout.flush()
    os.execve(sys.executable, command, _environment())  # noqa: S606


def _environment() -> dict[str, str]:
    """This environment, with a name for this server, vLLM's first runner, and the OpenMP that vLLM asks for
    on CPUs, if it is there and nothing else is.
    """
    from forerun.engines.vllm.counters import INSTANCE
    from forerun.engines.vllm.launch import preloaded

    ours = {INSTANCE: uuid4().hex, "VLLM_USE_V2_MODEL_RUNNER": "0"}
    return {**preloaded(), **os.environ, **ours}


def _demand_vllm() -> None:
    """Raise unless vLLM is there; its version is checked where it runs."""
    from importlib.util import find_spec

    from forerun.errors import MissingExtra

    if find_spec("vllm") is None:
        raise MissingExtra("vLLM", "vllm")


def _tell(model: str, config: SpeculationConfig) -> None:
    """What speculation will do, before vLLM's own lines."""
    from rich.console import Console
    from rich.table import Table

    from forerun.engines.vllm.launch import CHAIN

    table = Table.grid(padding=(0, 2))
    for what, how in (
        ("model", model),
        ("who guesses", ", ".join(config.names)),
        ("draft model", config.draft_model or "none"),
        ("how far", f"0 to {min(config.max_draft, CHAIN)} tokens a step, as many as pay"),
        ("guesses from", _sources(config)),
        ("words", _words(config)),
        ("per request", "vllm_xargs: forerun_max_draft, forerun_drafter, forerun_lenience, forerun_adaptive"),
    ):
        table.add_row(f"[bold]{what}[/]", how)
    console = Console(stderr=True, highlight=False)
    console.print("[bold green]forerun[/]: vLLM with speculation", table, sep="\n")


def _sources(config: SpeculationConfig) -> str:
    sources = ["the request's own text"]
    if config.share_outputs:
        sources.append("earlier answers within one cache_salt")
    sources += [f"the corpus {Path(file).name}" for file in config.corpora]
    return ", ".join(sources)


def _words(config: SpeculationConfig) -> str:
    if config.lenience < 1:
        return f"[red]lossy: lenience {config.lenience}[/]"
    return "as without speculation: greedy and seeded the same tokens, else the same law"
