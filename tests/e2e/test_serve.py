"""`forerun serve` beside stock vLLM in float32: real servers on loopback, and the `openai` client."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import run_audit

from forerun.servers.processes import Server, forerun_command, started, vllm_command

ROOT = Path(__file__).parents[2]
SPEC_BENCH = ROOT.parent / "shared" / "data" / "spec_bench" / "question.jsonl"
NUM_TOKENS = int(os.environ.get("FORERUN_E2E_TOKENS", "16"))
FAULTS = ("Raising", "OutOfRange", "TooMany", "WrongLengths", "NanQ")

pytestmark = pytest.mark.e2e

FLAGS = ["--served-model-name", "m", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"]
FLAGS += ["--max-model-len", "1024", "--max-num-batched-tokens", "2048"]


@pytest.fixture(scope="module")
def servers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Stock vLLM without speculation, and forerun with drafters of all kinds."""
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    folder = tmp_path_factory.mktemp("servers")
    paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT / "examples" / "serving")])
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": paths, "VLLM_LOGGING_LEVEL": "INFO"}
    ours = ["--share-outputs", "--drafter", "auto", "--drafter", "echo_drafter:EchoDrafter"]
    for fault in (*FAULTS, "Slow"):
        ours += ["--drafter", f"faulty:{fault}"]
    stock = started(vllm_command(smollm2, *FLAGS), folder / "stock.log", environment=environment)
    mine = started(forerun_command(smollm2, *FLAGS, *ours), folder / "ours.log", environment=environment)
    with ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:  # start both at the same time
            baseline, forerun = pool.map(stack.enter_context, (stock, mine))
        yield baseline, forerun


def client_of(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=120)


def prompts() -> list[str]:
    """Prompts of all Spec-Bench categories, or the sample in tests/data where Spec-Bench is not available.

    16 prompts, or 40 with FORERUN_E2E_IDENTITY=full.
    """
    if not SPEC_BENCH.exists():
        assert "FORERUN_CI" not in os.environ, "CI has Spec-Bench beside the project"
        lines = (ROOT / "tests" / "data" / "prompts.jsonl").read_text().splitlines()
        return [json.loads(line)["text"] for line in lines if line]
    lines = SPEC_BENCH.read_text().splitlines()
    num = 40 if os.environ.get("FORERUN_E2E_IDENTITY") == "full" else 16
    return [json.loads(line)["turns"][0][:900] for line in lines[:: len(lines) // num]][:num]


EVERY_DRAFT_TOKEN = {"forerun_adaptive": 0, "forerun_max_draft": 4}


def complete(server: Server, text: str, **settings: Any) -> dict[str, Any]:
    """Tokens and text of one completion, with its draft and accepted tokens.

    Verifies every draft token, so that the result does not depend on the machine's speed.
    """
    extra = {"return_token_ids": True, **settings.pop("extra_body", {})}
    extra["vllm_xargs"] = EVERY_DRAFT_TOKEN | extra.get("vllm_xargs", {})
    completion = client_of(server).chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": text}],
        **{"max_tokens": NUM_TOKENS, "temperature": 0} | settings,
        extra_body=extra,
    )
    metrics = ((completion.model_extra or {}).get("metrics") or {}).get("speculative_decoding") or {}
    choice = completion.choices[0]
    return {
        "tokens": choice.model_extra["token_ids"],
        "text": choice.message.content,
        "accepted": metrics.get("num_accepted_draft_tokens", 0),
        "drafted": metrics.get("num_draft_tokens", 0),
    }


def counts(server: Server) -> dict[str, float]:
    """forerun's metrics by name and drafter, summed over depths."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if match := re.match(r"(forerun:\w+|vllm:spec_decode_num_\w+)\{(.*)\} (\S+)$", line):
            drafter = re.search(r'drafter="([^"]*)"', match[2])
            key = match[1] + (f" {drafter[1]}" if drafter else "")
            found[key] = found.get(key, 0) + float(match[3])
    return found


def test_greedy_output_is_that_of_stock_vllm_alone_and_in_a_batch(servers: tuple[Server, Server]) -> None:
    baseline, forerun = servers
    texts = prompts()
    alone = [complete(forerun, text, extra_body={"cache_salt": f"s{at}"}) for at, text in enumerate(texts)]
    with ThreadPoolExecutor(16) as pool:
        expected = [one["tokens"] for one in pool.map(lambda text: complete(baseline, text), texts)]
        together = list(pool.map(lambda text: complete(forerun, text), texts))
    assert [one["tokens"] for one in alone] == expected
    assert [one["tokens"] for one in together] == expected
    assert sum(one["accepted"] for one in alone) > 0.1 * sum(map(len, expected))


def test_seeded_output_is_that_of_stock_vllm(servers: tuple[Server, Server]) -> None:
    texts = prompts()

    def tokens_of(server: Server, seed: int) -> list[int]:
        settings = {"temperature": 0.8, "top_p": 0.95, "seed": seed}
        num_tokens = NUM_TOKENS // 2  # top-p sorts the vocabulary, which takes as long as a step
        tokens: list[int] = complete(server, texts[seed], max_tokens=num_tokens, **settings)["tokens"]
        return tokens

    with ThreadPoolExecutor(4) as pool:
        baseline, forerun = (list(pool.map(partial(tokens_of, each), range(len(texts)))) for each in servers)
    assert forerun == baseline


def test_streams_emit_each_step_as_a_chunk_and_add_up_to_the_completion(
    servers: tuple[Server, Server],
) -> None:
    _, forerun = servers
    several = 0
    for text, settings in (
        ("Repeat three times: the train arrives at noon and leaves at one.", {"max_tokens": 64}),
        ("Repeat five times, nothing else: 🚂 naïve café, 東京タワー 🎉", {"max_tokens": 96}),
        ("Repeat three times: alpha beta gamma delta epsilon.", {"stop": ["delta eps"], "max_tokens": 64}),
        ("Repeat three times: one two three four five six.", {"stop": ["six.\n\nOne two"], "max_tokens": 64}),
    ):
        whole = complete(forerun, text, **settings)
        stream = client_of(forerun).chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": text}],
            temperature=0,
            stream=True,
            extra_body={"return_token_ids": True, "vllm_xargs": EVERY_DRAFT_TOKEN},
            **settings,
        )
        streamed, tokens = "", list[int]()
        for chunk in stream:
            for choice in chunk.choices:
                new = choice.model_extra.get("token_ids") or []
                several += len(new) > 1
                tokens += new
                streamed += choice.delta.content or ""
        assert streamed == whole["text"]
        assert tokens == whole["tokens"]
        assert "\ufffd" not in streamed.rstrip("\ufffd")
    assert several > 3, "chunks with several tokens"


def test_options_bound_select_and_disable_drafting(servers: tuple[Server, Server]) -> None:
    baseline, forerun = servers
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
def test_invalid_options_return_400_and_leave_other_requests_alone(
    servers: tuple[Server, Server], options: Any
) -> None:
    from openai import BadRequestError

    _, forerun = servers
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(complete, forerun, "Count to five.", max_tokens=16)
        with pytest.raises(BadRequestError, match="forerun_"):
            complete(forerun, "Hello", extra_body={"vllm_xargs": options})
        assert other.result()["tokens"]


def test_min_p_and_biases_give_the_output_of_non_speculative_decoding(servers: tuple[Server, Server]) -> None:
    baseline, forerun = servers
    text = "Repeat twice: the library opens at one o'clock."
    for settings in (
        {"temperature": 0.9, "seed": 1, "extra_body": {"min_p": 0.1}},
        {"temperature": 0.9, "seed": 2, "logit_bias": {"260": -100, "28": 5}},
        {"logit_bias": {"260": -100}},
    ):
        assert complete(forerun, text, **settings)["tokens"] == complete(baseline, text, **settings)["tokens"]


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_drafters_cost_draft_tokens_and_nothing_else(
    servers: tuple[Server, Server], fault: str
) -> None:
    baseline, forerun = servers
    texts = prompts()[:4]
    options = {"vllm_xargs": {"forerun_drafter": f"faulty:{fault}"}}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: complete(forerun, text, max_tokens=12, extra_body=options), texts))
    assert [one["tokens"] for one in found] == [
        complete(baseline, text, max_tokens=12)["tokens"] for text in texts
    ]
    errors = counts(forerun)[f"forerun:drafter_errors_total faulty:{fault}"]
    num_logged = forerun.log.read_text().count(f"drafter faulty:{fault}: ")
    assert (errors > 0, num_logged) == ((False, 0) if fault == "NanQ" else (True, 1))


def test_a_drafter_that_takes_ten_seconds_is_suspended(servers: tuple[Server, Server]) -> None:
    baseline, forerun = servers
    options = {"vllm_xargs": {"forerun_drafter": "faulty:Slow"}}
    began = time.monotonic()
    completion = complete(forerun, "Count to ten.", max_tokens=16, extra_body=options)
    assert completion["tokens"] == complete(baseline, "Count to ten.", max_tokens=16)["tokens"]
    assert 10 < time.monotonic() - began < 25, "it is called once"
    assert counts(forerun)["forerun:drafter_errors_total faulty:Slow"] == 1
    assert "faulty:Slow took 10" in forerun.log.read_text()


def test_drafts_never_cross_tenants(servers: tuple[Server, Server]) -> None:
    """An output is drafted when its tenant repeats the request, and never for another tenant."""
    _, forerun = servers
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


def test_cancelled_requests_leave_no_state(servers: tuple[Server, Server]) -> None:
    """500 requests, most of them cancelled; afterwards no request has speculation state."""
    _, forerun = servers
    dice = random.Random(0)
    plans = [(dice.random(), dice.randrange(1, 6), dice.randrange(2, 16)) for _ in range(500)]

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
    assert 100 < sum(finished) < 400
    deadline = time.monotonic() + 30
    while counts(forerun)["forerun:tracked_requests"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert counts(forerun)["forerun:tracked_requests"] == 0
    running = re.search(
        r"^vllm:num_requests_running\{.*\} (\S+)$", httpx.get(f"{forerun.url}/metrics").text, re.M
    )
    assert running is not None
    assert float(running[1]) == 0
    assert complete(forerun, "Count to three.", max_tokens=8)["tokens"], "the server still responds"


def test_metrics_agree_with_vllms_own(servers: tuple[Server, Server]) -> None:
    _, forerun = servers
    found = counts(forerun)
    for ours, theirs in (("draft", "draft"), ("proposed", "draft"), ("accepted", "accepted")):
        mine = sum(value for key, value in found.items() if key.startswith(f"forerun:{ours}_tokens_total"))
        assert mine == found[f"vllm:spec_decode_num_{theirs}_tokens_total"] > 0
    accepted = found["vllm:spec_decode_num_accepted_tokens_total"]
    assert found["forerun:tokens_total"] == found["forerun:request_steps_total"] + accepted
    assert found["forerun:draft_seconds_total suffix"] > 0


def test_the_log_has_a_summary_at_start_and_periodic_statistics(servers: tuple[Server, Server]) -> None:
    _, forerun = servers
    log = forerun.log.read_text()
    for term in ("drafters", "suffix, ngram, grammar", "float32"):
        assert term in log
    assert re.search(r"[\d.]+ tokens per step, \d+% .*, suffix: \d+ of \d+ draft tokens accepted", log)


@pytest.mark.parametrize("example", ["query", "per_request"])
def test_examples_that_query_a_server(servers: tuple[Server, Server], example: str) -> None:
    _, forerun = servers
    script = ROOT / "examples" / "serving" / f"{example}.py"
    printed = subprocess.run([sys.executable, script, forerun.v1], capture_output=True, text=True, check=True)
    assert "draft tokens accepted" in printed.stdout
    assert "False" not in printed.stdout


def test_audits_find_no_difference(servers: tuple[Server, Server], smollm2: Path) -> None:
    """The audit commands, with few samples; docs/auditing.md reports longer runs."""
    baseline, ours = servers
    both = ("--baseline", baseline.url, "--candidate", ours.url, "--reference", smollm2, "--max-tokens", "12")
    code, report = run_audit("greedy", *both, "--precision", "float32")
    assert code == 0
    assert report["findings"] == {"same": report["num_samples"]}
    code, report = run_audit("seeded", *both, "--num-seeds", "1")
    assert code == 0
    settings = ("--settings", "top-k 8", "--settings", "all at once, top-k 8", "--settings", "top-p 0.9")
    code, report = run_audit(
        "sampled",
        "--candidate",
        ours.url,
        "--reference",
        smollm2,
        *settings,
        "--num-samples",
        "64",
        "--max-samples",
        "16",
    )
    assert code == 0
    assert report["e_value"] < 20
    assert any("accepted draft tokens" in note for note in report["notes"])
