"""Dashboard and alert rules on a live server: its `/metrics`, and a real Prometheus that scrapes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from e2e.serve.completions import client_of
from forerun.servers.processes import Server

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "forerun.json"
RULES = ROOT / "deploy" / "prometheus" / "forerun-rules.yml"

pytestmark = pytest.mark.e2e


def named_metrics() -> set[str]:
    """The metrics that the dashboard and the rules name."""
    text = DASHBOARD.read_text(encoding="utf-8") + RULES.read_text(encoding="utf-8")
    return set(re.findall(r"\b(?:forerun|vllm):\w+", text))


def live_metrics(server: Server) -> set[str]:
    text = httpx.get(f"{server.url}/metrics").text
    return set(re.findall(r"^((?:forerun|vllm):\w+)[{ ]", text, flags=re.MULTILINE))


def test_a_live_server_exports_every_metric_of_the_dashboard_and_the_rules(
    baseline: Server, forerun: Server
) -> None:
    client_of(forerun).completions.create(model="m", prompt="One, two, one, two,", max_tokens=8)
    names, live = named_metrics(), live_metrics(forerun)
    prefixes = {name for name in names if name.endswith("_")}  # of regular expressions
    assert len(names) > 20
    assert names - prefixes - live == set()
    assert all(any(name.startswith(prefix) for name in live) for prefix in prefixes)
    assert any(name.startswith("forerun:") for name in names - live_metrics(baseline))


if shutil.which("prometheus"):  # setup.sh installs it where it can

    def test_a_real_prometheus_answers_every_panel_and_evaluates_every_rule(forerun: Server) -> None:
        script = ROOT / "scripts" / "draw_dashboard.py"
        command = [sys.executable, str(script), "--server", forerun.url, "--seconds", "25"]
        printed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert printed.returncode == 0, printed.stderr[-2000:]
        found = json.loads(printed.stdout)
        assert found["broken_rules"] == []
        assert [title for title, num_series in found["panels"].items() if not num_series] == []
