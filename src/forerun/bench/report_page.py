"""The report of a benchmark as an HTML page and as PNG figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Final

from forerun.bench.figures.systems import draw_itl, draw_speed, draw_survival, draw_throughput
from forerun.bench.findings import findings, first_setting, headline, losses
from forerun.bench.ratios import RatioEstimate
from forerun.bench.record import BenchRecord
from forerun.bench.report_tables import mark, output_text, setting_title, vllm_caption
from forerun.bench.summary import SystemResult, summarise
from forerun.bench.system_names import FORERUN
from forerun.errors import UnreadableRecord
from forerun.rendering.html_page import (
    collapsed,
    element,
    figure,
    json_block,
    table,
    text_element,
    text_list,
    write_html_page,
)
from forerun.rendering.plots import as_svg, write_figure

SPEEDUP: Final = (
    "Median speedup per category with 95 % confidence intervals. 1 is the same engine without speculation,"
    " measured alternately. Hollow: missing answers or different output. The limit is estimated from the"
    " accepted draft tokens and measured step costs; noise can carry a measured ratio above it."
)
SURVIVAL: Final = (
    "Share of steps that accept at least that many draft tokens. The area under a curve is the mean number of"
    " accepted draft tokens per step."
)
ITL: Final = "Distribution of inter-token latency; tokens of the same event have 0."

_COLUMNS: Final = (
    "",
    "speedup",
    "end to end",
    "tokens/s",
    "throughput",
    "tokens/step",
    "estimated limit",
    "TTFT p50",
    "ITL p50 / p99",
)

_STYLE: Final = """
ul.findings { padding-left: 1.1rem; font-size: 1.05rem } ul.findings li { margin: .35rem 0 }
table { width: 100% } th, td { padding: .32rem .4rem } th { white-space: normal }
th.output, td.output { text-align: left } td.output { white-space: normal; min-width: 8rem }
tr.ours td { color: var(--green); font-weight: 600 } tr.invalid td { color: var(--red) }
.interval { display: block; font-weight: 400 }
"""


def write_page(record: BenchRecord, file: Path) -> None:
    """Write the HTML page."""
    results = _timed_results(record)
    title, slower = headline(results), losses(results)
    body = [
        text_element("h1", title),
        text_element("p", _subtitle(record), "faint"),
        text_element("p", vllm_caption(record), "faint"),
        text_list(findings(results), "findings"),
        text_element("h2", "Where forerun is not the fastest") if slower else "",
        text_list(slower),
        *_setting_sections(results),
        *_throughput_sections(results),
        collapsed("Data of this page (JSON)", json_block(record.runs)),
    ]
    write_html_page(file, f"forerun: {title}", body, _STYLE)


def write_pngs(record: BenchRecord, folder: Path) -> None:
    """Write the figures of the first setting, and of throughput, as PNG files."""
    results = _timed_results(record)
    first = first_setting(results)
    drawings = {"speed": partial(draw_speed, first), "itl": partial(draw_itl, first)}
    drawings |= {"survival": partial(draw_survival, first)}
    if len({each.concurrency for each in results}) > 1:
        same = [each for each in results if each.temperature == first[0].temperature]
        drawings["throughput"] = partial(draw_throughput, same)
    for name, draw in drawings.items():
        write_figure(draw, folder / f"bench-{name}.png")


def _timed_results(record: BenchRecord) -> list[SystemResult]:
    results = summarise(record)
    if not any(each.overall for each in results):
        raise UnreadableRecord(
            "the record has no answer that is long enough to be timed: give more --max-tokens"
        )
    return results


def _subtitle(record: BenchRecord) -> str:
    workload, machine = record.runs[-1]["workload"], record.runs[-1]["machine"]
    return (
        f"{workload['model']}, {len(workload['questions'])} prompts, at most {workload['num_tokens']} output"
        f" tokens; {machine['cpu']}, {machine['threads']} threads"
    )


def _setting_sections(results: Sequence[SystemResult]) -> list[str]:
    """A section for each setting: table, speedup, survival and ITL."""
    sections = []
    for setting in dict.fromkeys((each.temperature, each.concurrency) for each in results):
        some = [each for each in results if (each.temperature, each.concurrency) == setting]
        survival = figure(as_svg(partial(draw_survival, some)), SURVIVAL)
        itl = figure(as_svg(partial(draw_itl, some)), ITL)
        sections += [
            text_element("h2", setting_title(some[0])),
            _table(some),
            figure(as_svg(partial(draw_speed, some)), SPEEDUP, wide=True),
            element("div", survival + itl, "pair"),
        ]
    return sections


def _throughput_sections(results: Sequence[SystemResult]) -> list[str]:
    """Throughput by concurrency for each temperature; none with a single concurrency."""
    if len({each.concurrency for each in results}) == 1:
        return []
    sections = []
    for temperature in dict.fromkeys(each.temperature for each in results):
        some = [each for each in results if each.temperature == temperature]
        title = "greedy" if not temperature else f"temperature {temperature:g}"
        sections += [
            text_element("h2", f"Throughput by concurrency, {title}"),
            element("figure", as_svg(partial(draw_throughput, some))),
        ]
    return sections


def _table(results: Sequence[SystemResult]) -> str:
    head = [*(text_element("th", title) for title in _COLUMNS), text_element("th", "output", "output")]
    return table(head, map(_row, results))


def _row(result: SystemResult) -> str:
    classes = {"ours": result.system == FORERUN, "invalid": not result.is_valid}
    names = " ".join(name for name, applies in classes.items() if applies)
    system = f"{escape(result.system)} {text_element('span', result.precision, 'small faint')}"
    cells = "".join(element("td", cell) for cell in (system, *_cells(result)))
    return element("tr", cells + text_element("td", output_text(result), "output"), names)


def _cells(result: SystemResult) -> list[str]:
    overall = result.overall
    if overall is None:
        return [""] * (len(_COLUMNS) - 1)
    return [
        f"{mark(result)} {_with_interval(overall.speedup)}".lstrip(),
        _with_interval(overall.end_to_end),
        f"{overall.speed:.1f}",
        f"{result.throughput:.1f}",
        "" if overall.tokens_per_step is None else f"{overall.tokens_per_step:.2f}",
        "" if not overall.limit or result.system == result.baseline else _with_interval(overall.limit),
        f"{overall.ttft[0] * 1000:.0f} ms",
        f"{overall.itl[0] * 1000:.0f} / {overall.itl[2] * 1000:.0f} ms",
    ]


def _with_interval(ratio: RatioEstimate) -> str:
    interval = text_element("span", f"[{ratio.low:.2f}, {ratio.high:.2f}]", "small faint interval")
    return f"{ratio.value:.2f} {interval}"
