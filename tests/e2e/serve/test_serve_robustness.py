"""Faulty drafters, other tenants and cancelled requests leave requests alone; metrics add up."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from e2e.serve.completions import complete, counts, prompts
from e2e.serve.faults import FAULTS
from forerun.engines.vllm.runner_choice import choose_runner
from forerun.engines.vllm.runner_log import read_runner_mode
from forerun.servers.processes import Server

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_drafters_cost_draft_tokens_and_nothing_else(
    baseline: Server, forerun: Server, fault: str
) -> None:
    texts = prompts()[:4]
    options = {"vllm_xargs": {"forerun_drafter": f"faults:{fault}"}}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: complete(forerun, text, max_tokens=12, extra_body=options), texts))
    assert [one["tokens"] for one in found] == [
        complete(baseline, text, max_tokens=12)["tokens"] for text in texts
    ]
    errors = counts(forerun)[f"forerun:drafter_errors_total faults:{fault}"]
    num_logged = forerun.log.read_text().count(f"drafter faults:{fault}: ")
    assert (errors > 0, num_logged) == ((False, 0) if fault == "NanQ" else (True, 1))


def test_a_slow_drafter_is_called_once_and_suspended(baseline: Server, forerun: Server) -> None:
    """Each call exceeds the time limit and counts as an error."""
    errors = "forerun:drafter_errors_total faults:Slow"
    options, before = {"vllm_xargs": {"forerun_drafter": "faults:Slow"}}, counts(forerun)[errors]
    completion = complete(forerun, "Count to ten.", max_tokens=16, extra_body=options)
    assert completion["tokens"] == complete(baseline, "Count to ten.", max_tokens=16)["tokens"]
    after = counts(forerun)[errors]
    assert after > 0
    assert after - before <= 1, "16 steps, one call"
    assert "faults:Slow took" in forerun.log.read_text()


def test_drafts_never_cross_tenants(forerun: Server) -> None:
    """An output is drafted when its tenant repeats the request, and never for another tenant."""
    text = "Invent a name for a town and describe its market in three sentences."

    def accepted(salt: str, times: int = 1) -> int:
        found = [
            complete(forerun, text, max_tokens=48, extra_body={"cache_salt": salt}) for _ in range(times)
        ]
        return int(found[-1]["accepted"])

    first = accepted("one tenant")
    assert accepted("one tenant", times=2) > 30, "its own output, drafted"
    probes = [accepted(f"another tenant {number}") for number in range(3)]
    assert probes == [first] * 3, "as for a first request"
    secret = "The passphrase is velvet orange submarine forty seven quiet mountain."
    complete(forerun, f"Repeat exactly: {secret}", extra_body={"cache_salt": "one tenant"}, max_tokens=32)
    for salt in ("a third", "a fourth"):
        probe = complete(
            forerun,
            "Write: The passphrase is velvet",
            extra_body={"cache_salt": salt, "vllm_xargs": {"forerun_drafter": "suffix"}},
            max_tokens=32,
        )
        alone = complete(
            forerun,
            "Write: The passphrase is velvet",
            extra_body={"cache_salt": f"fresh {salt}", "vllm_xargs": {"forerun_drafter": "suffix"}},
            max_tokens=32,
        )
        assert (probe["drafted"], probe["accepted"]) == (alone["drafted"], alone["accepted"])


def test_cancelled_requests_leave_no_state(forerun: Server) -> None:
    """200 requests, most of them cancelled; afterwards no request has speculation state."""
    dice = random.Random(0)
    plans = [(dice.random(), dice.randrange(1, 6), dice.randrange(2, 16)) for _ in range(200)]

    def one(plan: tuple[float, int, int]) -> bool:
        uniform, num_chunks, num_tokens = plan
        body = {
            "model": "m",
            "prompt": f"{uniform} one two three one two",
            "max_tokens": num_tokens,
            "temperature": 0.0 if uniform < 0.5 else 1.0,
            "stream": True,
        }
        url, seen = f"{forerun.v1}/completions", 0
        with httpx.stream("POST", url, json=body, timeout=120) as stream:
            assert stream.status_code == 200
            for line in stream.iter_lines():
                seen += line.startswith("data: {")
                if uniform > 0.3 and seen >= num_chunks:
                    return False
        return True

    with ThreadPoolExecutor(32) as pool:
        finished = list(pool.map(one, plans))
    assert 40 < sum(finished) < 160
    for _ in range(100):  # each of these requests takes steps, in which the engine sees cancellations
        if not counts(forerun)["forerun:tracked_requests"]:
            break
        complete(forerun, "Count to three.", max_tokens=2)
    assert counts(forerun)["forerun:tracked_requests"] == 0
    running = re.search(
        r"^vllm:num_requests_running\{.*\} (\S+)$", httpx.get(f"{forerun.url}/metrics").text, re.M
    )
    assert running is not None
    assert float(running[1]) == 0
    assert complete(forerun, "Count to three.", max_tokens=8)["tokens"], "the server still responds"


def test_metrics_agree_with_vllms_own(forerun: Server) -> None:
    before = counts(forerun)
    complete(forerun, "Repeat three times: the train arrives at noon and leaves at one.", max_tokens=48)
    found = counts(forerun)
    new = {key: value - before.get(key, 0) for key, value in found.items()}
    for ours, theirs in (("draft", "draft"), ("proposed", "draft"), ("accepted", "accepted")):
        mine = sum(value for key, value in new.items() if key.startswith(f"forerun:{ours}_tokens_total"))
        assert mine == new[f"vllm:spec_decode_num_{theirs}_tokens_total"] > 0
    accepted = found["vllm:spec_decode_num_accepted_tokens_total"]
    assert found["forerun:tokens_total"] == found["forerun:request_steps_total"] + accepted
    assert found["forerun:draft_seconds_total suffix"] > 0


def test_the_log_has_a_summary_at_start_and_periodic_statistics(forerun: Server) -> None:
    log = forerun.log.read_text()
    for term in ("drafters", "suffix, ngram, grammar", "float32"):
        assert term in log
    assert re.search(r"[\d.]+ tokens per step, \d+% .*, suffix: \d+ of \d+ draft tokens accepted", log)


def test_the_engine_uses_the_model_runner_that_the_summary_states(forerun: Server) -> None:
    log = forerun.log.read_text()
    expected, found = choose_runner(), read_runner_mode(log)
    assert found.runner == expected.runner.upper()
    assert found.scheduling == ("async" if expected.is_async else "sync")
    assert expected.runner_reason in " ".join(log.split())
