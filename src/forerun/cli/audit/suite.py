"""`forerun audit suite`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.audit.options import (
    OUTPUT,
    REQUESTS,
    SERVERS,
    TEST,
    ApiKey,
    AsJson,
    Candidate,
    DialectName,
    Model,
    NumPrompts,
    Output,
    Prompts,
    Timeout,
)
from forerun.cli.audit.servers import load_reference, server_connections, with_token_ids
from forerun.cli.audit.show import check_page, finish
from forerun.cli.console import check_writable, progress_bar

if TYPE_CHECKING:
    from forerun.audit.suite.catalogue import SuiteCheck


def suite(
    candidate: Candidate,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The same server without speculation. Without it, greedy output is compared with one-token"
            " completions of the candidate.",
            show_default="none",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="MODEL",
            help="The model's directory: tells near-ties from faults, and tests the distribution.",
            show_default="none",
            rich_help_panel=TEST,
        ),
    ] = None,
    checks: Annotated[
        list[str] | None,
        typer.Option(
            "--check", help="Run this check only. Repeatable.", show_default="all", rich_help_panel=TEST
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip", help="Leave this check out. Repeatable.", show_default="none", rich_help_panel=TEST
        ),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="Many more samples, and prompts up to any context length.",
            rich_help_panel=TEST,
        ),
    ] = False,
    prompts: Prompts = None,
    num_prompts: NumPrompts = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=2,
            max=64,
            help="The most requests in flight at once.",
            rich_help_panel=REQUESTS,
        ),
    ] = 16,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write JUnit XML to this file.", rich_help_panel=OUTPUT),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json-file", metavar="FILE", help="Write the JSON report to this file.", rich_help_panel=OUTPUT
        ),
    ] = None,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Check a server for the failures of speculative decoding that public issues describe.

    Each check says pass, fail, not applicable (the server lacks or refuses what is checked) or undecided.

    Exit code 0: no check failed. 1: a check failed. 2: no verdict, because a check is undecided or nothing
    could be checked.

    Example: forerun audit suite --candidate localhost:8000 --baseline localhost:8001 --output suite.html
    """
    from dataclasses import replace

    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.audit.prompts import read_prompts
    from forerun.audit.suite.junit import write_junit
    from forerun.audit.suite.run import choose_checks, run_suite
    from forerun.audit.suite.session import Session

    with server_connections(model, api_key, dialect, timeout) as connect:
        check_page(output, with_figures=False)
        for file in (junit, json_file):
            if file is not None:
                check_writable(file)
        chosen = choose_checks(checks or (), skip or ())
        loaded = read_prompts(prompts, num_prompts)
        session = Session(
            candidate=connect(candidate),
            baseline=None if baseline is None else connect(baseline),
            prompts=loaded,
            concurrency=concurrency,
            thorough=thorough,
        )
        if reference is not None:
            loaded_model = load_reference(reference)
            precision = str(loaded_model.own_dtype).removeprefix("torch.")
            session = replace(
                session,
                reference=loaded_model,
                referee=NearTieReferee(loaded_model, [precision, precision]),
                prompts=with_token_ids(loaded, loaded_model),
            )
        question = {
            "candidate": candidate,
            "baseline": baseline,
            "reference": reference,
            "model": session.candidate.model,
            "checks": [check.name for check in chosen],
            "thorough": thorough,
        }
        with progress_bar("checking", len(chosen)) as progress:

            def show(done: int, check: SuiteCheck) -> None:
                progress(done, f"checking {check.name}")

            report = run_suite(session, chosen, question, show)
        if junit is not None:
            write_junit(report, junit)
        if json_file is not None:
            json_file.write_text(json.dumps(report.as_json(), indent=2), encoding="utf-8")
        finish(report, as_json=as_json, page=output)
