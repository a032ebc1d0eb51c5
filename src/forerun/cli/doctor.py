"""`forerun doctor`: checks the installation, and lists known defects of this platform."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Annotated, Literal

import typer

from forerun.installation import install_command

Outcome = Literal["fine", "missing", "broken", "note"]

EXTRAS = {
    "torch": "torch",
    "vllm": "vllm",
    "transformers": "local",
    "matplotlib": "plots",
    "tokenizers": "corpus",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check and its outcome."""

    what: str
    outcome: Outcome
    detail: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check this installation: packages, drafters, vLLM. Exit code 1 if a check fails.

    Missing optional packages are listed with the command that installs them.
    """
    findings: list[CheckResult] = []
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


def _machine() -> Iterator[CheckResult]:
    yield CheckResult("machine", "fine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}")
    yield CheckResult("Python", "fine", platform.python_version())
    if find_spec("torch") is None:
        yield CheckResult("GPU", "note", "not detected: torch is not installed")
        return
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if cuda else "none: models run on the CPU"
    untested = "; forerun has not been tested on GPUs" if cuda else ""
    yield CheckResult("GPU", "note" if cuda else "fine", f"{device}{untested}")


def _packages() -> Iterator[CheckResult]:
    for name in ("forerun", "numpy", "numba"):
        yield CheckResult(name, "fine", version(name))
    for name, extra in EXTRAS.items():
        found = _version(name)
        if found is None:
            yield CheckResult(name, "missing", f"not installed: {install_command(extra)}")
        else:
            yield CheckResult(name, "fine", found)


def _version(name: str) -> str | None:
    for each in (name, f"{name}-cpu"):
        try:
            return version(each)
        except PackageNotFoundError:
            continue
    return None


def _drafters() -> Iterator[CheckResult]:
    from forerun.config import SpeculationConfig
    from forerun.drafters.registry import make_drafters
    from forerun.types import RequestView

    try:
        drafters = make_drafters(SpeculationConfig())
        for name, drafter in drafters.items():
            view = RequestView("doctor", [1, 2, 3, 4] * 4, prediction=(1, 2, 3, 4))
            (draft,) = drafter.propose([view], [3])
            right = draft.tokens.tolist()[:1] == [1]
            yield CheckResult(f"drafter: {name}", "fine" if right else "broken", "drafts a repeated pattern")
    except Exception as error:  # any failure is the finding
        yield CheckResult("drafters", "broken", f"{type(error).__name__}: {error}")


def _engine() -> Iterator[CheckResult]:
    if find_spec("vllm") is None:
        return
    from forerun.errors import UnsupportedEngine

    try:
        from forerun.engines.vllm.contract import check

        check()
        yield CheckResult("vLLM's internals", "fine", "all names that forerun patches or calls exist")
    except (UnsupportedEngine, ImportError) as error:
        yield CheckResult("vLLM's internals", "broken", str(error))
    wanted = os.environ.get("VLLM_PLUGINS")
    plugged = any(each.name == "forerun" for each in entry_points(group="vllm.general_plugins"))
    plugged = plugged and (wanted is None or "forerun" in wanted.split(","))
    yield CheckResult(
        "vLLM's plugins",
        "fine" if plugged else "broken",
        "vLLM loads forerun's plugin" if plugged else _plugin_remedy(wanted),
    )
    from forerun.engines.vllm.runner_choice import choose_runner

    yield CheckResult("vLLM's model runner", "fine", choose_runner().summary)
    yield from _on_cpu()


def _plugin_remedy(wanted: str | None) -> str:
    """How to have vLLM load the plugin, by the value of VLLM_PLUGINS."""
    if wanted is not None and "forerun" not in wanted.split(","):
        return f"VLLM_PLUGINS is {wanted!r} and leaves out forerun: add it, or unset the variable"
    return "forerun's entry point is not installed: reinstall forerun with pip"


def _on_cpu() -> Iterator[CheckResult]:
    """Checks that matter only where vLLM runs on a CPU."""
    import torch

    from forerun.engines.vllm.launch import openmp_library

    if torch.cuda.is_available():
        return
    preloaded = os.environ.get("LD_PRELOAD", "")
    libraries = (
        ("libiomp5", openmp_library(), "pip install intel-openmp"),
        ("libtcmalloc", None, "install it (Debian: libtcmalloc-minimal4) and add it to LD_PRELOAD"),
    )
    for library, found, remedy in libraries:
        if library in preloaded:
            yield CheckResult(library, "fine", "preloaded")
        elif found is not None:
            yield CheckResult(library, "fine", "forerun serve preloads it")
        else:
            yield CheckResult(library, "note", f"not preloaded: vLLM is slower without it; {remedy}")
    yield CheckResult(
        "stock vLLM, sampled",
        "note",
        "vLLM's own speculation at temperature above 0 returns wrong text on CPUs (vllm#55005);"
        " forerun serve is not affected",
    )
    yield CheckResult(
        "stock vLLM, seeded",
        "note",
        "seeded requests with long prompts fail on CPUs (chunked prefill); forerun serve is not affected",
    )


EXAMINATIONS: dict[str, Callable[[], Iterator[CheckResult]]] = {
    "machine": _machine,
    "packages": _packages,
    "drafters": _drafters,
    "vLLM": _engine,
}


def _show(findings: list[CheckResult]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = {"fine": "[green]✓[/]", "missing": "[yellow]-[/]", "broken": "[red]✗[/]", "note": "[yellow]![/]"}
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(marks[finding.outcome], finding.what, escape(finding.detail))
    Console(highlight=False).print(table)
