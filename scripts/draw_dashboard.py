"""Answers every query of the Grafana dashboard from a real Prometheus that scrapes a running server.

    python scripts/draw_dashboard.py --server http://localhost:8000 --seconds 300 --figure dashboard.png

Prometheus runs with the rules of `deploy/prometheus`. The script sends requests to the server, then evaluates
every panel and every rule, and prints the number of series by panel as JSON. `--figure` draws the panels in
their places: what a Grafana would show, drawn without Grafana.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated, Any, Final, TypeAlias

import httpx
import typer
import yaml
from rich.console import Console

from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.cli.console import report_errors
from forerun.errors import ConfigurationError
from forerun.rendering.plots import Axes, Figure, require_matplotlib, series_colour, write_figure
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "deploy"
SCRAPE_SECONDS: Final = 2
RATE_SECONDS: Final = 10 * SCRAPE_SECONDS
"""The window of rates: Grafana's `$__rate_interval`."""

Series: TypeAlias = tuple[str, list[tuple[float, float]]]
"""A label, and points of time and value."""


@dataclass(frozen=True)
class Panel:
    """A panel of the dashboard with its answers."""

    title: str
    kind: str
    unit: str
    place: tuple[int, int, int, int]
    series: list[Series]


@contextmanager
def prometheus(server: str, folder: Path) -> Iterator[httpx.Client]:
    """A Prometheus with the configuration of `deploy/`, except for its target and its intervals."""
    program = shutil.which("prometheus")
    if program is None:
        raise ConfigurationError("prometheus is not installed: apt-get install prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{SCRAPE_SECONDS}s")
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [httpx.URL(server).netloc.decode()]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for rules in config["rule_files"]:
        shutil.copy(DEPLOY / "prometheus" / rules, folder)
    with closing(socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (
        (folder / "prometheus.log").open("w") as log,
        subprocess.Popen(
            [program, *options, f"--web.listen-address={address}"], stdout=log, stderr=subprocess.STDOUT
        ) as process,
        httpx.Client(base_url=f"http://{address}", timeout=30.0) as client,
    ):
        try:
            wait_for(client, process)
            yield client
        finally:
            process.terminate()


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Wait until Prometheus answers."""
    for _ in range(120):
        try:
            if client.get("/-/ready").is_success:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.5)
    raise ConfigurationError("prometheus did not start")


def send_load(server: Endpoint, seconds: float) -> None:
    """Send edits, which are drafted well, and questions, which are not, with one, four and eight clients."""
    questions = [each.text for each in read_suite(str(ROOT / "tests" / "data" / "questions.jsonl"))]
    texts = [
        text
        for pair in zip([each.text for each in read_suite(CODE_EDITING)], questions, strict=False)
        for text in pair
    ]
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        with ThreadPoolExecutor((1, 4, 8)[number % 3]) as pool:
            batch = [texts[(8 * number + each) % len(texts)] for each in range(8)]
            params = SamplingParams(temperature=0.0 if number % 2 else 1.0, seed=number)
            send = partial(ask_until, server, params, until)
            list(pool.map(send, batch))
        number += 1


def ask_until(server: Endpoint, params: SamplingParams, until: float, text: str) -> None:
    """One request, unless time is up."""
    if time.monotonic() < until:
        server.chat(text, params, 48)


def expression_of(text: str, seconds: float) -> str:
    """An expression with values for Grafana's variables."""
    values = {"__rate_interval": f"{RATE_SECONDS}s", "__range": f"{math.ceil(seconds)}s"}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), text)


def ask(client: httpx.Client, path: str, **given: Any) -> list[Any]:
    """The result of a query."""
    answer = client.get(f"/api/v1/{path}", params=given).json()
    if answer["status"] != "success":
        raise ConfigurationError(f"{given.get('query')}: {answer.get('error')}")
    found: list[Any] = answer["data"]["result"]
    return found


def label_of(target: dict[str, Any], metric: dict[str, str]) -> str:
    """The legend of a series, as the target's format says."""
    text = target.get("legendFormat", "")
    return "" if text.startswith("__") else re.sub(r"{{(\w+)}}", lambda found: metric.get(found[1], ""), text)


def by_label(target: dict[str, Any], found: list[Any]) -> Iterator[Series]:
    """One series of a table whose rows differ in a numeric label, such as the depth."""
    points = [
        (float(next(iter(each["metric"].values()))), float(each["value"][1]))
        for each in found
        if each["metric"]
    ]
    if points:
        yield ("sampled" if 'sampled="yes"' in target["expr"] else ""), sorted(points)


def answers(client: httpx.Client, began: float, ended: float) -> Iterator[Panel]:
    """Every panel with what Prometheus answers to its queries."""
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "forerun.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        series: list[Series] = []
        for target in panel.get("targets", ()):
            query = expression_of(target["expr"], ended - began)
            if target.get("format") == "table":
                series += by_label(target, ask(client, "query", query=query, time=ended))
                continue
            times = {"start": began, "end": ended, "step": SCRAPE_SECONDS}
            for each in ask(client, "query_range", query=query, **times):
                points = [(float(at) - began, float(value)) for at, value in each["values"]]
                points = [point for point in points if math.isfinite(point[1])]
                if points:
                    series.append((label_of(target, each["metric"]), points))
        if panel["type"] != "row":
            place = panel["gridPos"]
            unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
            where = (place["x"], place["y"], place["w"], place["h"])
            yield Panel(panel["title"], panel["type"], unit, where, series)


def broken_rules(client: httpx.Client) -> list[str]:
    """Alert rules that Prometheus could not evaluate."""
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    return [
        f"{rule['name']}: {rule.get('lastError', rule['health'])}"
        for group in groups
        for rule in group["rules"]
        if rule["health"] != "ok"
    ]


def draw(panels: Sequence[Panel]) -> Figure:
    """The panels in their places."""
    height = max(y + h for _, y, _, h in (each.place for each in panels))
    figure = require_matplotlib().figure.Figure(figsize=(15, 0.36 * height), layout="constrained")
    grid = figure.add_gridspec(height, 24)
    for panel in panels:
        x, y, w, h = panel.place
        draw_panel(figure.add_subplot(grid[y : y + h, x : x + w]), panel)
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    """One panel: a number, or lines."""
    axes.set_title(panel.title, fontsize=9)
    if panel.kind == "stat" or not panel.series:
        axes.set_axis_off()
        last = panel.series[0][1][-1][1] if panel.series else math.nan
        shown = f"{last:.0%}" if panel.unit == "percentunit" else f"{last:.3g}{' s' * (panel.unit == 's')}"
        text = shown if panel.series else "no data"
        axes.text(0.0, 0.4, text, fontsize=20 if panel.series else 10, transform=axes.transAxes)
        return
    for number, (legend, points) in enumerate(panel.series):
        label = re.sub(r",? ?127\.0\.0\.1:\d+", "", legend).strip()
        axes.plot(*zip(*points, strict=True), color=series_colour(number), label=label, linewidth=1.3)
    if any(label for label, _ in panel.series):
        axes.legend(fontsize=7, loc="best")
    axes.set_ylim(bottom=0)
    axes.set_xlabel({"trend": "depth" if "depth" in panel.title else "rows"}.get(panel.kind, "s"), fontsize=7)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True)


def main(
    server: Annotated[str, typer.Option(help="URL of a running `forerun serve`.")],
    seconds: Annotated[float, typer.Option(min=20, help="Duration of the load.")] = 60,
    figure: Annotated[Path | None, typer.Option(help="Draw the panels to this file.")] = None,
) -> None:
    """Scrape a server under load, and evaluate every panel and every rule."""
    with report_errors(), tempfile.TemporaryDirectory() as folder, prometheus(server, Path(folder)) as client:
        Console(stderr=True).print(f"sending requests for {seconds:g} s", style="dim")
        began = time.time()
        with closing(Endpoint(server)) as endpoint:
            send_load(endpoint, seconds)
        time.sleep(2 * SCRAPE_SECONDS)
        panels = list(answers(client, began, time.time()))
        broken = broken_rules(client)
    print(json.dumps({"panels": {each.title: len(each.series) for each in panels}, "broken_rules": broken}))
    if figure is not None:
        write_figure(partial(draw, panels), figure)


if __name__ == "__main__":
    typer.run(main)
