"""Options shared by all audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from forerun.prompts import PROMPT_FORMATS

SERVERS: Final = "Servers"
REQUESTS: Final = "Requests"
TEST: Final = "Test"
OUTPUT: Final = "Output"

RENAMED: Final = {
    "--html": "--output",
    "--most": "--num-prompts",
    "--at-once": "--concurrency",
    "--tokens": "--max-tokens",
    "--seeds": "--num-seeds",
    "--samples": "--num-samples",
    "--most-samples": "--max-samples",
}
"""Deprecated option names, with their new names."""

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of a table.", rich_help_panel=OUTPUT)
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the report with its figures to this file, one HTML page.",
        rich_help_panel=OUTPUT,
    ),
]
Candidate = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="The server under test: a URL, with or without /v1, or host:port.",
        rich_help_panel=SERVERS,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The name of the model in requests.",
        show_default="the first that the server lists",
        rich_help_panel=SERVERS,
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key", envvar="OPENAI_API_KEY", help="The API key of the servers.", rich_help_panel=SERVERS
    ),
]
DialectName = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        help="vllm, sglang, llama-server, llama-cpp-python or tensorrt-llm.",
        show_default="detected",
        rich_help_panel=SERVERS,
    ),
]
Timeout = Annotated[
    float, typer.Option(help="Seconds after which a request is sent again.", rich_help_panel=SERVERS)
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"A file of prompts: {PROMPT_FORMATS}.",
        show_default="four built-in prompts",
        rich_help_panel=REQUESTS,
    ),
]
NumPrompts = Annotated[
    int | None,
    typer.Option(min=1, help="Use the first N prompts only.", show_default="all", rich_help_panel=REQUESTS),
]

ErrorRate = Annotated[
    float,
    typer.Option(
        min=1e-9,
        max=0.5,
        help="Probability that a faultless server is reported as different.",
        rich_help_panel=TEST,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        min=1e-6,
        max=0.5,
        help="Total variation distance allowed for rounding.",
        show_default="measured",
        rich_help_panel=TEST,
    ),
]
ReferenceModel = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="MODEL",
        help="The model's directory: float32 logits classify differences.",
        rich_help_panel=TEST,
    ),
]
Invariant = Annotated[
    bool,
    typer.Option(
        "--invariant",
        help="Both servers run in invariant mode: no difference is allowed for rounding.",
        rich_help_panel=TEST,
    ),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens per output.", rich_help_panel=REQUESTS)]
Concurrency = Annotated[
    int, typer.Option(min=1, max=64, help="Requests in flight.", rich_help_panel=REQUESTS)
]
