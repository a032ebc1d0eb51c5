"""Soaks a forerun server: mixed requests of many clients, random aborts, memory, and a sample replayed.

    make soak ARGS="--minutes 60 --clients 16"

Clients send requests with every kind of setting and abort some of them. Memory of the server's processes is
sampled. A share of the greedy and seeded outputs is sent again without speculation, alone, at the end: each
must be identical in float32. The record says how many requests were lost, how many outputs differed, and the
slope of memory after the first third.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import psutil  # type: ignore[import-untyped]
import typer
from rich.console import Console

from forerun.bench.provenance import provenance
from forerun.bench.run_facts import PACKAGES
from forerun.bench.served_model import NO_CHUNKED_PREFILL, ServedModel, vllm_server_flags
from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.bench.system_names import FORERUN, VLLM
from forerun.bench.systems import System
from forerun.cli.console import report_errors
from forerun.errors import ForerunError
from forerun.servers.endpoint import Endpoint
from forerun.servers.processes import forerun_command

ROOT: Final = Path(__file__).parents[1]
SAMPLE_SECONDS: Final = 10.0
WARM_UP_SHARE: Final = 1 / 3
"""The first part of the run, in which caches fill; memory is judged after it."""

SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
}


@dataclass
class Soak:
    """What happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def settings_of(rng: random.Random) -> dict[str, Any]:
    """Settings of a request: greedy, seeded or unseeded; penalties, stops, grammars, predictions."""
    kind = rng.random()
    settings: dict[str, Any] = {"temperature": 0}
    if kind > 0.35:
        settings = {"temperature": rng.choice([0.3, 0.7, 1.0]), "top_p": rng.choice([1.0, 0.9])}
        if kind < 0.75:
            settings["seed"] = rng.randrange(2**31)
    extras: list[dict[str, Any]] = [
        {},
        {},
        {"frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"repetition_penalty": 1.1},
        {"min_p": 0.05},
        {"stop": ["\n\n", "the"]},
        {"logit_bias": {"100": 5.0}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"vllm_xargs": {"forerun_max_draft": rng.choice([0, 2, 8])}},
        {"prediction": {"type": "content", "content": "def main():\n    return 0\n" * 8}},
        {"logprobs": True, "top_logprobs": 2},
    ]
    return settings | rng.choice(extras)


def client(server: Endpoint, texts: list[str], soak: Soak, seed: int, until: float) -> None:
    """Send requests until the end, and abort one in ten."""
    rng = random.Random(seed)  # noqa: S311
    while time.monotonic() < until:
        body = {
            "messages": [{"role": "user", "content": rng.choice(texts)}],
            "max_tokens": rng.choice([1, 8, 24, 48, 96]),
            **settings_of(rng),
        }
        try:
            if rng.random() < 0.1:
                with server.stream("/chat/completions", body) as events:
                    for _ in islice(events, rng.randrange(6)):
                        pass
                outcome = "aborted"
            else:
                text = answer(server, body)
                outcome = "finished"
                if (not body["temperature"] or "seed" in body) and rng.random() < 0.03:
                    with soak.lock:
                        soak.kept.append((body, text))
        except ForerunError as error:
            outcome = "lost"
            with soak.lock:
                soak.errors.append(str(error)[:300])
        with soak.lock:
            soak.counts[outcome] += 1


def answer(server: Endpoint, body: dict[str, Any]) -> str:
    """The text of a chat completion."""
    return str(server.post("/chat/completions", body)["choices"][0]["message"]["content"])


def watch_memory(soak: Soak, began: float, stop: threading.Event) -> None:
    """Sample the memory of the server's processes, which are all descendants of this one, in MiB."""
    while not stop.wait(SAMPLE_SECONDS):
        total = 0
        for each in psutil.Process().children(recursive=True):
            try:
                total += each.memory_full_info().uss
            except psutil.Error:
                continue
        soak.memory.append((time.monotonic() - began, total / 2**20))


def slope(memory: list[tuple[float, float]]) -> dict[str, float]:
    """The slope of memory after the warm-up in MiB per hour, with its standard error, and the level."""
    used = np.array(memory[int(len(memory) * WARM_UP_SHARE) :])
    if len(used) < 3:
        return {}
    hours, level = used[:, 0] / 3600, used[:, 1]
    (gradient, start), covariance = np.polyfit(hours, level, 1, cov=True)
    blocks = len(used) / 30  # neighbouring samples are alike: about one independent sample in five minutes
    error = float(np.sqrt(covariance[0, 0] * len(used) / max(blocks, 1.0)))
    return {
        "mib_per_hour": round(float(gradient), 2),
        "standard_error": round(error, 2),
        "first_mib": round(float(start + gradient * hours[0]), 1),
        "last_mib": round(float(level[-1]), 1),
    }


def replay(server: Endpoint, soak: Soak) -> list[dict[str, Any]]:
    """The kept requests whose output differs without speculation."""
    differing = []
    for body, text in soak.kept:
        again = {**body, "vllm_xargs": {"forerun_max_draft": 0}}
        again.pop("prediction", None)
        if (found := answer(server, again)) != text:
            differing.append({"request": body, "output": text, "expected": found})
    return differing


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    minutes: Annotated[float, typer.Option(help="Duration of the load.")] = 60,
    clients: Annotated[int, typer.Option(min=1, help="Concurrent clients.")] = 16,
    dtype: Annotated[str, typer.Option(help="dtype of the server.")] = "float32",
    record: Annotated[Path, typer.Option(help="The record.")] = ROOT / "docs" / "records" / "soak.json",
) -> None:
    """Load a server, and report lost requests, differing outputs and the slope of memory."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True)
    soak = Soak()
    with report_errors(), ExitStack() as stack:
        served = ServedModel(model, dtype, vllm_flags=(NO_CHUNKED_PREFILL,))
        command = forerun_command(model, *vllm_server_flags(served), "--share-outputs")
        system = System(FORERUN, VLLM, dtype, command=tuple(command))
        console.print("starting the server", style="dim")
        running = stack.enter_context(
            system.start(record.with_name(f"{record.stem}.log"), served.startup_timeout)
        )
        server = stack.enter_context(closing(Endpoint(running.url, timeout=600.0)))
        texts = [each.text for each in read_suite(str(ROOT / "tests" / "data" / "questions.jsonl"))]
        texts += [each.text for each in read_suite(CODE_EDITING)]
        began, stop = time.monotonic(), threading.Event()
        threading.Thread(target=watch_memory, args=(soak, began, stop), daemon=True).start()
        with ThreadPoolExecutor(clients) as pool:
            ends = [
                pool.submit(client, server, texts, soak, seed, began + 60 * minutes)
                for seed in range(clients)
            ]
            while not all(each.done() for each in ends):
                time.sleep(min(60.0, SAMPLE_SECONDS))
                level = soak.memory[-1][1] if soak.memory else 0.0
                elapsed = (time.monotonic() - began) / 60
                console.print(f"{elapsed:.1f} min: {dict(soak.counts)}, {level:.0f} MiB", highlight=False)
        stop.set()
        for each in ends:
            each.result()
        console.print(f"replaying {len(soak.kept)} requests without speculation", style="dim")
        differing = replay(server, soak)
        result = {
            **provenance(f"make soak ARGS='--minutes {minutes:g} --clients {clients}'", PACKAGES),
            "settings": {"model": model.name, "dtype": dtype, "minutes": minutes, "clients": clients},
            "requests": dict(soak.counts),
            "faults": dict(server.faults),
            "errors": soak.errors[:20],
            "replayed": len(soak.kept),
            "differing": differing,
            "memory": slope(soak.memory),
            "memory_samples": [(round(at), round(level, 1)) for at, level in soak.memory[::6]],
        }
    record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shown = {key: result[key] for key in ("requests", "faults", "replayed", "memory")}
    console.print({**shown, "differing": len(differing)}, highlight=False)


if __name__ == "__main__":
    typer.run(main)
