"""Request options bound, select and disable drafting; invalid ones are refused."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.serve.completions import complete, counts
from forerun.servers.processes import Server

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.e2e


def test_options_bound_select_and_disable_drafting(baseline: Server, forerun: Server) -> None:
    text = "Repeat three times: the quick brown fox jumps over the lazy dog and runs away."
    expected = complete(baseline, text, max_tokens=48)["tokens"]

    def complete_with(**options: Any) -> dict[str, Any]:
        return complete(forerun, text, max_tokens=48, extra_body={"vllm_xargs": options})

    for options in ({"forerun_drafter": "none"}, {"forerun_max_draft": 0}):
        completion = complete_with(**options)
        assert (completion["tokens"], completion["drafted"]) == (expected, 0)
    for name in ("suffix", "ngram", "echo_drafter:EchoDrafter"):
        before = counts(forerun)
        completion = complete_with(forerun_drafter=name)
        after = counts(forerun)
        assert completion["tokens"] == expected
        assert completion["accepted"] > 0
        key = f"forerun:accepted_tokens_total {name}"
        assert after[key] - before[key] == completion["accepted"]
    before = counts(forerun)
    bounded = complete_with(forerun_max_draft=1)
    after = counts(forerun)
    assert bounded["tokens"] == expected
    steps = after["forerun:request_steps_total"] - before["forerun:request_steps_total"]
    assert 0 < bounded["drafted"] <= steps


@pytest.mark.parametrize(
    "options",
    [
        {"forerun_max_draft": -1},
        {"forerun_max_draft": 10**9},
        {"forerun_max_draft": "many"},
        {"forerun_drafter": "unknown"},
        {"forerun_lenience": 0},
        {"forerun_lenience": 1.5},
        {"forerun_colour": "red"},
    ],
)
def test_invalid_options_return_400_and_leave_other_requests_alone(forerun: Server, options: Any) -> None:
    from openai import BadRequestError

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(complete, forerun, "Count to five.", max_tokens=16)
        with pytest.raises(BadRequestError, match="forerun_"):
            complete(forerun, "Hello", extra_body={"vllm_xargs": options})
        assert other.result()["tokens"]


@pytest.mark.parametrize("example", ["query", "per_request", "edit_with_prediction", "tenants"])
def test_examples_that_query_a_server(forerun: Server, example: str) -> None:
    script = ROOT / "examples" / "serving" / f"{example}.py"
    printed = subprocess.run([sys.executable, script, forerun.v1], capture_output=True, text=True, check=True)
    assert "draft tokens accepted" in printed.stdout
    assert "False" not in printed.stdout
