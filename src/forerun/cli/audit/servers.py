"""Connections of an audit to servers, and its reference model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forerun.cli.audit.show import no_verdict_on_error

if TYPE_CHECKING:
    from forerun.models.reference import Reference
    from forerun.servers.completions import Prompt
    from forerun.servers.endpoint import Endpoint

_HOST_AND_PORT: Final = re.compile(r"(localhost|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+)(/.*)?")


@contextmanager
def server_connections(
    model: str | None, api_key: str, dialect: str | None, timeout: float
) -> Iterator[Callable[[str], Endpoint]]:
    """Yields a function that connects to a server; connections are closed on exit."""
    from forerun.errors import ConfigurationError, did_you_mean
    from forerun.servers.dialects import DIALECTS
    from forerun.servers.endpoint import Endpoint

    with ExitStack() as stack, no_verdict_on_error():

        def connect(url: str) -> Endpoint:
            if dialect is not None and dialect not in DIALECTS:
                raise ConfigurationError(f"unknown dialect {dialect!r}; {did_you_mean(dialect, DIALECTS)}")
            known = None if dialect is None else DIALECTS[dialect]
            server = Endpoint(url, model=model, api_key=api_key, dialect=known, timeout=timeout)
            stack.callback(server.close)
            return server

        yield connect


def is_url(text: str) -> bool:
    """Whether this names a server rather than the directory of a model."""
    if Path(text).is_dir():
        return False
    return text.startswith(("http://", "https://")) or _HOST_AND_PORT.fullmatch(text) is not None


def load_reference(name: str) -> Reference:
    """The reference model in this directory."""
    from rich.console import Console

    from forerun.models.reference import Reference

    with Console(stderr=True).status("loading the reference model"):
        return Reference(name)


def with_token_ids(prompts: list[Prompt], model: Reference | None) -> list[Prompt]:
    """The prompts with token ids, if there is a reference model."""
    from forerun.audit.sampled import preparation

    return prompts if model is None else [preparation.with_token_ids(each, model) for each in prompts]
