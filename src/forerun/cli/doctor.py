"""`forerun doctor`: what is installed, what works, and what is known to be broken here."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Annotated, Literal

import typer

Outcome = Literal["fine", "missing", "broken", "note"]

EXTRAS = {"vllm": "vllm", "transformers": "local", "matplotlib": "plots", "tokenizers": "corpus"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    outcome: Outcome
    detail: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Look at this installation and say what works; exit code 1 if anything needed is broken."""
    findings: list[Finding] = []
    for name, examine in EXAMINATIONS.items():
        if not as_json:
            typer.echo(f"\r\033[K{name} ...", nl=False, err=True)
        findings += examine()
    if as_json:
        import json

        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        typer.echo("\r\033[K", nl=False, err=True)
        _show(findings)
    raise typer.Exit(any(finding.outcome == "broken" for finding in findings))


def _machine() -> Iterator[Finding]:
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if cuda else "none: models run on the CPU"
    yield Finding("machine", "fine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}")
    yield Finding("Python", "fine", platform.python_version())
    yield Finding("GPU", "note" if cuda else "fine", f"{device}{'; never tested by us' if cuda else ''}")


def _packages() -> Iterator[Finding]:
    for name in ("forerun", "torch", "numpy", "numba"):
        yield Finding(name, "fine", version(name))
    for name, extra in EXTRAS.items():
        found = _version(name)
        want = f"not installed: pip install 'forerun[{extra}]'"
        yield Finding(name, "missing" if found is None else "fine", want if found is None else found)


def _version(name: str) -> str | None:
    for each in (name, f"{name}-cpu"):
        try:
            return version(each)
        except PackageNotFoundError:
            continue
    return None


def _guessing() -> Iterator[Finding]:
    from forerun.config import SpeculationConfig
    from forerun.drafters.registry import make_drafters
    from forerun.types import RequestView

    try:
        drafters = make_drafters(SpeculationConfig())
        for name, drafter in drafters.items():
            (draft,) = drafter.propose([RequestView("doctor", [1, 2, 3, 4] * 4)], [3])
            right = draft.tokens.tolist()[:1] == [1]
            yield Finding(f"guessing: {name}", "fine" if right else "broken", "guesses what followed before")
    except Exception as error:  # whatever it is, it is the finding
        yield Finding("guessing", "broken", f"{type(error).__name__}: {error}")


def _engine() -> Iterator[Finding]:
    if find_spec("vllm") is None:
        return
    from forerun.errors import UnsupportedEngine

    try:
        from forerun.engines.vllm.contract import check

        check()
        yield Finding("vLLM's inside", "fine", "every name that forerun leans on is there")
    except (UnsupportedEngine, ImportError) as error:
        yield Finding("vLLM's inside", "broken", str(error))
    wanted = os.environ.get("VLLM_PLUGINS")
    plugged = any(each.name == "forerun" for each in entry_points(group="vllm.general_plugins"))
    plugged = plugged and (wanted is None or "forerun" in wanted.split(","))
    yield Finding(
        "vLLM's plugins",
        "fine" if plugged else "broken",
        "vLLM loads forerun's" if plugged else "vLLM does not load forerun's: install it, see VLLM_PLUGINS",
    )
    yield from _on_cpu()


def _on_cpu() -> Iterator[Finding]:
    """What only matters, or only fails, where vLLM runs on a CPU."""
    import torch

    from forerun.engines.vllm.launch import openmp

    if torch.cuda.is_available():
        return
    preloaded = os.environ.get("LD_PRELOAD", "")
    for library, found in (("libiomp5", openmp()), ("libtcmalloc", None)):
        if library in preloaded:
            yield Finding(library, "fine", "preloaded")
        elif found is not None:
            yield Finding(library, "fine", "forerun serve preloads it")
        else:
            yield Finding(library, "note", "not preloaded: vLLM is slower without it")
    yield Finding(
        "stock vLLM, sampled",
        "note",
        "speculation of vLLM's own at temperature above 0 returns garbage on CPUs (vllm#55005);"
        " forerun serve does not",
    )
    yield Finding(
        "stock vLLM, seeded",
        "note",
        "seeded requests with long prompts fail on CPUs (chunked prefill); with forerun serve they do not",
    )


EXAMINATIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "the machine": _machine,
    "packages": _packages,
    "guessing": _guessing,
    "vLLM": _engine,
}


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = {"fine": "[green]✓[/]", "missing": "[yellow]-[/]", "broken": "[red]✗[/]", "note": "[yellow]![/]"}
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(marks[finding.outcome], finding.what, escape(finding.detail))
    Console(highlight=False).print(table)
