"""Reports of a benchmark: Markdown tables, PNG figures and a self-contained HTML page.

A system that failed or whose output differs carries a mark next to each of its speeds.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final

from forerun.bench.figures.systems import (
    as_png,
    as_svg,
    draw_itl,
    draw_speed,
    draw_survival,
    draw_throughput,
)
from forerun.bench.html_page import Page
from forerun.bench.record import MAX_STEAL_SHARE, BenchRecord
from forerun.bench.summary import (
    OVERALL,
    CategoryResult,
    RatioEstimate,
    SystemResult,
    relative_ratios,
    summarise,
)
from forerun.bench.systems import FORERUN, FORERUN_SYSTEMS, VLLM
from forerun.errors import UnreadableRecord

INVALID_MARK: Final = "✗"
"""Next to speeds of a system with missing answers or different output."""

UNDECIDED_MARK: Final = "?"
"""Next to speeds of a system with differences that may be near-ties."""


def write_page(record: BenchRecord, file: Path) -> None:
    """Write the HTML page."""
    results = _timed_results(record)
    settings = list(dict.fromkeys((each.temperature, each.concurrency) for each in results))
    sections = [_list_section("Where forerun is not the fastest", losses(results))]
    sections += [_setting_section(results, *setting) for setting in settings]
    if len({concurrency for _, concurrency in settings}) > 1:
        sections.append(_throughput_sections(results))
    subtitles = [_subtitle(record), vllm_caption(record)]
    page = Page(headline(results), subtitles, findings(results), sections, record.runs)
    file.write_text(page.html(), encoding="utf-8")


def write_pngs(record: BenchRecord, folder: Path) -> list[Path]:
    """Write the figures of the first setting, and of throughput, as PNG files."""
    results = _timed_results(record)
    first = _first_setting(results)
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {"speed": partial(draw_speed, first), "itl": partial(draw_itl, first)}
    drawings |= {"survival": partial(draw_survival, first)}
    if len({each.concurrency for each in results}) > 1:
        same = [each for each in results if each.temperature == first[0].temperature]
        drawings["throughput"] = partial(draw_throughput, same)
    files = []
    for name, draw in drawings.items():
        files.append(folder / f"bench-{name}.png")
        as_png(draw, files[-1])
    return files


def headline(results: Sequence[SystemResult]) -> str:
    """The page's title: forerun's speedup at the first setting."""
    ours = next((each for each in _first_setting(results) if each.system == FORERUN), None)
    if ours is None or ours.overall is None:
        return "Benchmark of speculative decoding"
    text = f"forerun: {_speedup_text(ours, ours.overall.speedup)}"
    return text if ours.is_valid else f"{text}; {INVALID_MARK} not valid: see the findings"


def findings(results: Sequence[SystemResult]) -> list[str]:
    """Sentences on forerun's speedups, then on failures, different output and steal time of any system."""
    sentences = []
    for each in results:
        if each.system == FORERUN and each.overall is not None:
            limit = each.overall.limit
            text = f"{setting_title(each)}: {_speedup_text(each, each.overall.speedup)}; output:"
            text += f" {each.output.summary()}"
            if limit:
                text += f"; estimated limit of the accepted draft tokens: {limit}"
            sentences.append(text + ".")
    for each in results:
        if each.num_missing:
            reason = f" ({'; '.join(each.reason.splitlines())})" if each.reason else ""
            sentences.append(
                f"{setting_title(each)}: missing answers of {each.system} or its baseline:"
                f" {each.num_missing}{reason}."
            )
        if not each.output.passed:
            sentences.append(
                f"{setting_title(each)}: the output of {each.system} differs from {each.baseline}'s:"
                f" {each.output.summary()}."
            )
    return sentences + _disturbed(results)


def _speedup_text(result: SystemResult, ratio: RatioEstimate) -> str:
    baseline = f"non-speculative {result.baseline}"
    return f"{ratio} times the decoding speed of {baseline}{ratio.significance_note}"


def _disturbed(results: Sequence[SystemResult]) -> list[str]:
    """A sentence per setting on answers with too much steal time."""
    settings = dict.fromkeys(setting_title(each) for each in results if each.num_disturbed)
    sentences = []
    for setting in settings:
        some = [each for each in results if each.num_disturbed and setting_title(each) == setting]
        counts = ", ".join(f"{each.num_disturbed} of {each.system}" for each in some)
        sentences.append(f"{setting}: answers with more than {MAX_STEAL_SHARE:.0%} steal time: {counts}.")
    return sentences


def losses(results: Sequence[SystemResult]) -> list[str]:
    """A sentence for each system and setting with a higher measured speed than forerun.

    At concurrency 1 decoding speeds are compared by category, above it throughput, because an engine that
    serves requests one after another decodes each of them fast. Systems of other runs are compared through
    forerun's baseline, since machine speed drifts between runs.
    """
    sentences = []
    for ours in (each for each in results if each.system == FORERUN):
        for other in (each for each in results if _is_rival(each, ours)):
            ratios = relative_ratios(other, ours)
            leads = {name: ratio for name, ratio in ratios.items() if round(ratio.value, 2) > 1}
            if not ratios and _has_answers(ours):
                sentences.append(
                    f"{setting_title(ours)}: {other.system} has no answer in a run with {ours.baseline}:"
                    " not compared."
                )
            elif leads:
                name = f"{other.system} ({other.precision}){mark(other)}"
                sentences.append(f"{setting_title(ours)}, {name}: {_leads(leads)}.")
    return sentences


def _has_answers(result: SystemResult) -> bool:
    return bool(result.relative.speeds or result.relative.groups)


def _leads(ratios: dict[str, RatioEstimate]) -> str:
    """A rival's leads over forerun: first those that the interval confirms, then the others."""
    shown = {name: ratio for name, ratio in ratios.items() if not ratio.contains_1}
    within = {name: ratio for name, ratio in ratios.items() if ratio.contains_1}
    parts = []
    if shown:
        parts.append(f"faster than forerun, {_listed(shown)}")
    if within:
        parts.append(f"no difference shown, {_listed(within)}")
    return "; ".join(parts)


def _listed(ratios: dict[str, RatioEstimate]) -> str:
    return ", ".join(
        f"{ratio} times {'the throughput' if name == OVERALL else f'in {name}'}"
        for name, ratio in ratios.items()
    )


def _is_rival(other: SystemResult, ours: SystemResult) -> bool:
    same_setting = (other.temperature, other.concurrency) == (ours.temperature, ours.concurrency)
    return other.system not in FORERUN_SYSTEMS and same_setting


def category_tables(results: Sequence[SystemResult]) -> dict[str, list[list[str]]]:
    """A table by setting: speedup and tokens per step by category, speed, and output comparison."""
    settings = dict.fromkeys((each.temperature, each.concurrency) for each in results)
    tables = {}
    for setting in settings:
        some = [each for each in results if (each.temperature, each.concurrency) == setting]
        names = dict.fromkeys(name for each in some for name in each.by_category if name != OVERALL)
        categories = [*names, OVERALL]
        rows = [["", *categories, _speed_title(some[0]), "output"]]
        for each in some:
            cells = [
                _speedup_cell(each, each.by_category.get(name), interval=name == OVERALL)
                for name in categories
            ]
            rows.append([each.system, *cells, _speed(each), _output(each)])
        tables[setting_title(some[0])] = rows
    return tables


def overall_tables(results: Sequence[SystemResult]) -> dict[str, list[list[str]]]:
    """A table by setting over all categories: speedup, tokens per step, speed, and output comparison."""
    tables: dict[str, list[list[str]]] = {}
    for each in results:
        head = ["", "speedup", "tok/step", _speed_title(each), "output"]
        rows = tables.setdefault(setting_title(each), [head])
        overall = each.overall
        if overall is None:
            rows.append([each.system, *[""] * 3, _output(each)])
            continue
        ratio = overall.speedup
        steps = "" if overall.tokens_per_step is None else f"{overall.tokens_per_step:.2f}"
        shown = f"{ratio.value:.2f}" if each.system == each.baseline else str(ratio)
        rows.append([each.system, f"{shown}{mark(each)}", steps, _speed(each), _output(each)])
    return tables


def _speed_title(result: SystemResult) -> str:
    return "tok/s" if result.concurrency == 1 else "tok/s, all"


def _speed(result: SystemResult) -> str:
    """Decoding speed at concurrency 1, throughput above."""
    if result.overall is None:
        return ""
    speed = result.overall.speed if result.concurrency == 1 else result.throughput
    return f"{speed:.1f}{mark(result)}"


def vllm_caption(record: BenchRecord, *, quote: str = "") -> str:
    """The flags and environment of the record's vLLM servers that differ from vLLM's defaults."""
    settings = dict.fromkeys(filter(None, map(_vllm_settings, record.runs)))
    if not settings:
        return "vLLM flags: not recorded; no vLLM server was started by the benchmark"
    return f"vLLM flags: {'; in another run: '.join(f'{quote}{each}{quote}' for each in settings)}"


def _vllm_settings(run: dict[str, Any]) -> str:
    """The flags and environment of a run's vLLM servers; old records have the flags in a command only."""
    command = run["systems"].get(VLLM, {}).get("command", [])
    flags = run.get("vllm_flags", command[command.index("serve") + 2 :] if "serve" in command else [])
    environment = [f"{name}={value}" for name, value in run.get("vllm_environment", {}).items()]
    return " ".join(
        [*([shlex.join(flags)] if flags else []), *(["with", *environment] if environment else [])]
    )


def markdown(results: Sequence[SystemResult], caption: str = "") -> str:
    """The category tables in Markdown with a caption below them."""
    parts = []
    for title, (head, *rows) in category_tables(results).items():
        ruler = ["---", *["---:"] * (len(head) - 2), "---"]
        bold = [[f"**{row[0]}**" if row[0] == FORERUN else row[0], *row[1:]] for row in rows]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *bold))
        parts.append(f"{title}:\n\n{lines}")
    return "\n\n".join([*parts, *([caption] if caption else [])])


def mark(result: SystemResult) -> str:
    """The mark next to every speed of a system; empty if the result is valid."""
    if not result.is_valid:
        return f" {INVALID_MARK}"
    return f" {UNDECIDED_MARK}" if result.output.is_undecided else ""


def _output(result: SystemResult) -> str:
    text = "baseline" if result.system == result.baseline else result.output.summary()
    if result.differs_elsewhere and result.output.passed:
        text += ", DIFFERENT at another setting"
    return f"{INVALID_MARK} {result.num_missing} missing; {text}" if result.num_missing else text


def _speedup_cell(result: SystemResult, line: CategoryResult | None, *, interval: bool) -> str:
    if line is None:
        return ""
    is_baseline = result.system == result.baseline
    ratio = str(line.speedup) if interval and not is_baseline else f"{line.speedup.value:.2f}"
    steps = "" if line.tokens_per_step is None or is_baseline else f" ({line.tokens_per_step:.2f})"
    return f"{ratio}{steps}{mark(result)}"


def _timed_results(record: BenchRecord) -> list[SystemResult]:
    results = summarise(record)
    if not any(each.overall for each in results):
        raise UnreadableRecord("the record has no answer that is long enough to be timed: give more --tokens")
    return results


def _first_setting(results: Sequence[SystemResult]) -> list[SystemResult]:
    """The results at the lowest temperature and concurrency."""
    setting = min((each.temperature, each.concurrency) for each in results)
    return [each for each in results if (each.temperature, each.concurrency) == setting]


def setting_title(result: SystemResult) -> str:
    """Temperature and concurrency as a title."""
    temperature = "Greedy" if not result.temperature else f"Temperature {result.temperature:g}"
    return f"{temperature}, concurrency {result.concurrency}"


def _subtitle(record: BenchRecord) -> str:
    workload, machine = record.runs[-1]["workload"], record.runs[-1]["machine"]
    return (
        f"{workload['model']}, {len(workload['questions'])} prompts, at most {workload['num_tokens']} output"
        f" tokens; {machine['cpu']}, {machine['threads']} threads"
    )


def _setting_section(results: Sequence[SystemResult], temperature: float, concurrency: int) -> str:
    """The section of one setting: table, speedup, survival and ITL."""
    some = [each for each in results if (each.temperature, each.concurrency) == (temperature, concurrency)]
    caption = (
        "Median speedup per category with 95 % confidence intervals. 1 is the same engine without"
        " speculation, measured alternately. Hollow: missing answers or different output. The limit is"
        " estimated from the accepted draft tokens and measured step costs; noise can carry a measured"
        " ratio above it."
    )
    return (
        f"<h2>{escape(setting_title(some[0]))}</h2>{_table(some)}"
        f"<figure class='wide'>{as_svg(partial(draw_speed, some))}<figcaption>{caption}</figcaption></figure>"
        f"<div class='pair'><figure>{as_svg(partial(draw_survival, some))}<figcaption>Share of steps that"
        " accept at least that many draft tokens. The area under a curve is the mean number of accepted"
        " draft tokens per step.</figcaption></figure>"
        f"<figure>{as_svg(partial(draw_itl, some))}<figcaption>Distribution of inter-token latency; tokens of"
        " the same event have 0.</figcaption></figure></div>"
    )


def _list_section(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(each)}</li>' for each in sentences)}</ul>"


def _throughput_sections(results: Sequence[SystemResult]) -> str:
    parts = []
    for temperature in dict.fromkeys(each.temperature for each in results):
        some = [each for each in results if each.temperature == temperature]
        title = "greedy" if not temperature else f"temperature {temperature:g}"
        figure = as_svg(partial(draw_throughput, some))
        parts.append(f"<h2>Throughput by concurrency, {title}</h2><figure>{figure}</figure>")
    return "".join(parts)


def _table(results: Sequence[SystemResult]) -> str:
    titles = (
        "", "speedup", "end to end", "tokens/s", "throughput", "tokens/step", "estimated limit",
        "TTFT p50", "ITL p50 / p99",
    )  # fmt: skip
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = "".join(map(_row, results))
    return f"<div class='wide'><table><tr>{head}<th class='output'>output</th></tr>{rows}</table></div>"


def _row(result: SystemResult) -> str:
    classes = {"ours": result.system == FORERUN, "invalid": not result.is_valid}
    names = " ".join(name for name, applies in classes.items() if applies)
    system = f"{escape(result.system)} <span class='small'>{escape(result.precision)}</span>"
    cells = "".join(f"<td>{cell}</td>" for cell in (system, *_cells(result)))
    return f"<tr class='{names}'>{cells}<td class='output'>{escape(_output(result))}</td></tr>"


def _cells(result: SystemResult) -> list[str]:
    overall = result.overall
    if overall is None:
        return [""] * 8
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
    return f"{ratio.value:.2f} <span class='small interval'>[{ratio.low:.2f}, {ratio.high:.2f}]</span>"


def as_values(record: BenchRecord) -> list[dict[str, Any]]:
    """Every result as JSON values."""
    return [
        {key: value for key, value in asdict(each).items() if key not in {"itls", "relative"}}
        | {"is_valid": each.is_valid}
        for each in summarise(record)
    ]
