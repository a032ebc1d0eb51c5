"""Result files of vLLM's load client, `vllm bench serve --save-result`.

The client measures the ITL between two chunks of a stream. With speculation a chunk can have several tokens,
so the ITL is the pause that a reader of the stream sees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from forerun.errors import UnreadableRecord
from forerun.json_records import numbered_lines

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
"""The client's latencies; `--percentile-metrics` selects those that a file has."""

DIGEST_LENGTH: Final = 12
"""Hexadecimal digits of the digest of an output."""

TIME_DIGITS: Final = 3
"""Digits after the point of recorded milliseconds and rates."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One run of the client against one server; latencies are in milliseconds.

    Missing latencies are none. Files without `--save-detailed` have no digests of outputs.
    """

    request_rate: float | None
    max_concurrency: int | None
    num_completed: int
    num_failed: int
    duration: float
    num_output_tokens: int
    throughput: float
    request_throughput: float
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    e2el_p50: float | None = None
    e2el_p99: float | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    output_digests: tuple[str, ...] = ()
    error: str = ""

    @classmethod
    def from_client(cls, values: Mapping[str, Any]) -> ClientResult:
        """The result from the client's JSON object."""
        rate, concurrency = values["request_rate"], values["max_concurrency"]
        percentiles = {
            f"{name}_p{percentile}": _percentile(values, name, percentile)
            for name in LATENCIES
            for percentile in (50, 99)
        }
        return cls(
            request_rate=None if rate == "inf" else float(rate),
            max_concurrency=None if concurrency is None else int(concurrency),
            num_completed=values["completed"],
            num_failed=values.get("failed", 0),
            duration=round(values["duration"], TIME_DIGITS),
            num_output_tokens=values["total_output_tokens"],
            throughput=round(values["output_throughput"], TIME_DIGITS),
            request_throughput=round(values["request_throughput"], TIME_DIGITS + 3),
            **percentiles,
            num_draft_tokens=values.get("spec_decode_draft_tokens", 0),
            num_accepted_tokens=values.get("spec_decode_accepted_tokens", 0),
            output_digests=tuple(map(_digest, values.get("generated_texts", ()))),
            error=next(filter(None, values.get("errors", ())), ""),
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ClientResult:
        """The result from an entry of a record; the inverse of `to_row`."""
        known = {each.name for each in fields(cls)}
        values = {key: value for key, value in row.items() if key in known}
        return cls(**values | {"output_digests": tuple(row.get("output_digests", ()))})

    def to_row(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self) | {"output_digests": list(self.output_digests)}

    @property
    def load(self) -> str:
        """The load that the client made: concurrency, request rate, or both."""
        parts = [] if self.max_concurrency is None else [f"concurrency {self.max_concurrency}"]
        if self.request_rate is not None:
            parts.append(f"{self.request_rate:.3g} requests/s")
        return ", ".join(parts) or "all requests at once"


def read_client_results(file: Path) -> list[ClientResult]:
    """The results in a file: one, or several that `--append-result` wrote."""
    try:
        text = file.read_text(encoding="utf-8")
        results = [ClientResult.from_client(json.loads(line)) for _, line in numbered_lines(text)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableRecord(
            f"{file} is not a result file of `vllm bench serve --save-result`:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not results:
        raise UnreadableRecord(f"{file} is empty: `vllm bench serve --save-result` writes result files")
    return results


def _percentile(values: Mapping[str, Any], name: str, percentile: int) -> float | None:
    """A percentile in milliseconds. The client writes the median whether or not p50 is requested."""
    found = values.get(f"p{percentile}_{name}_ms")
    if found is None and percentile == 50:
        found = values.get(f"median_{name}_ms")
    return None if found is None else round(float(found), TIME_DIGITS)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
