"""Completions and metrics of a server."""

from __future__ import annotations

import os
import re
from typing import Any

import httpx

from e2e.questions import FULL, read_questions
from forerun.servers.processes import Server

NUM_TOKENS = int(os.environ.get("FORERUN_E2E_TOKENS", "16"))
EVERY_DRAFT_TOKEN = {"forerun_adaptive": 0, "forerun_max_draft": 4, "forerun_drafter": "suffix"}
"""Verify every draft token of one drafter. Without this, all drafters propose, the faulty ones included."""


def prompts() -> list[str]:
    return read_questions(40 if FULL else 16)


def client_of(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=120)


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
