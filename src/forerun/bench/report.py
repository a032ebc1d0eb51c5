"""A benchmark told: tables in Markdown, and one page that needs nothing else.

What did not go right is never told as if it had: a contestant that erred, or whose words differ, keeps its
mark wherever its speed stands.
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
    draw_speed,
    draw_survival,
    draw_throughput,
    draw_waiting,
)
from forerun.bench.html_page import Page
from forerun.bench.record import TAKEN, BenchRecord
from forerun.bench.summary import ALL, CategoryResult, RatioEstimate, SystemResult, compared, summarise
from forerun.bench.systems import FORERUN, OURS, VLLM
from forerun.errors import UnreadableRecord

WRONG: Final = "✗"
"""Beside a figure that does not count."""

DOUBTFUL: Final = "?"
"""Beside a figure of who says something else, where nobody could tell whether over a near-tie."""


def write_page(record: BenchRecord, file: Path) -> None:
    """The page."""
    results = _summarised(record)
    settings = list(dict.fromkeys((each.temperature, each.width) for each in results))
    sections = [_section("Where forerun is not the fastest", losses(results))]
    sections += [_setting(results, temperature, width) for temperature, width in settings]
    if len({width for _, width in settings}) > 1:
        sections.append(_loads(results))
    subtitles = [_subtitle(record), vllm_caption(record)]
    page = Page(headline(results), subtitles, findings(results), sections, record.runs)
    file.write_text(page.html(), encoding="utf-8")


def write_pngs(record: BenchRecord, folder: Path) -> list[Path]:
    """The figures of the first setting, and throughput, as files for a README."""
    results = _summarised(record)
    first = _first(results)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"speed": partial(draw_speed, first), "waiting": partial(draw_waiting, first)}
    drawn |= {"survival": partial(draw_survival, first)}
    if len({each.width for each in results}) > 1:
        same = [each for each in results if each.temperature == first[0].temperature]
        drawn["throughput"] = partial(draw_throughput, same)
    files = []
    for name, draw in drawn.items():
        files.append(folder / f"bench-{name}.png")
        as_png(draw, files[-1])
    return files


def headline(results: Sequence[SystemResult]) -> str:
    """The page's title: what most people came for."""
    first = _first(results)
    ours = next((each for each in first if each.who == FORERUN), None)
    if ours is None or ours.overall is None:
        return "A benchmark of speculative decoding"
    ratio = ours.overall.over_plain
    told = f"forerun: {ratio} times the decoding speed of non-speculative {ours.baseline}{ratio.verdict}"
    return told if ours.sound else f"{told}, but something went wrong"


def findings(results: Sequence[SystemResult]) -> list[str]:
    """What the figures say of forerun, in sentences, and what went wrong with anybody."""
    told = []
    for each in results:
        if each.who == FORERUN and each.overall is not None:
            ratio, limit = each.overall.over_plain, each.overall.limit
            text = (
                f"{setting_words(each)}: {ratio} times the decoding speed of non-speculative {each.baseline}"
                f"{ratio.verdict}; {each.words.told()}"
            )
            if limit:
                text += f"; estimated limit of the accepted draft tokens: {limit}"
            told.append(text + ".")
    for each in results:
        if each.num_missing:
            why = f" ({'; '.join(each.why.splitlines())})" if each.why else ""
            lack = f"{each.num_missing} answers are missing, its own or its plain one's{why}"
            told.append(f"{setting_words(each)}, {each.who}: {lack}.")
        if not each.words.honest:
            words = each.words.told()
            told.append(f"{setting_words(each)}: {each.who} does not say what {each.baseline} says: {words}.")
    return told + _disturbed(results)


def _disturbed(results: Sequence[SystemResult]) -> list[str]:
    """Whose answers came while others had too much of the machine."""
    settings = dict.fromkeys(setting_words(each) for each in results if each.num_disturbed)
    told = []
    for setting in settings:
        some = [each for each in results if each.num_disturbed and setting_words(each) == setting]
        whose = ", ".join(f"{each.num_disturbed} of {each.who}" for each in some)
        told.append(f"{setting}: others had more than {TAKEN:.0%} of the machine during answers: {whose}.")
    return told


def losses(results: Sequence[SystemResult]) -> list[str]:
    """Systems that measured more tokens per second than forerun: a sentence for each, at every setting.

    Alone it is decoding speed that is compared, by category; at more requests at a time it is what all of
    them get together, since who answers one after another is quick for the one. Runs have their hours: who
    did not run beside forerun is compared by way of forerun's plain one.
    """
    told = []
    for ours in (each for each in results if each.who == FORERUN):
        for other in (each for each in results if _is_rival(each, ours)):
            ratios = compared(other, ours)
            leads = {name: ratio for name, ratio in ratios.items() if round(ratio.value, 2) > 1}
            if not ratios and _has_answers(ours):
                told.append(
                    f"{setting_words(ours)}: {other.who} gave no answer beside {ours.baseline}: not compared."
                )
            elif leads:
                who = f"{other.who} ({other.precision}){mark(other)}"
                told.append(f"{setting_words(ours)}, {who}: {_leads(leads)}.")
    return told


def _has_answers(result: SystemResult) -> bool:
    return bool(result.beside.speeds or result.beside.groups)


def _leads(ratios: dict[str, RatioEstimate]) -> str:
    """Where and by how much a rival is ahead of forerun: what is shown, then what is within the interval."""
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
        f"{ratio} times {'the throughput' if name == ALL else f'in {name}'}" for name, ratio in ratios.items()
    )


def _is_rival(other: SystemResult, ours: SystemResult) -> bool:
    return other.who not in OURS and (other.temperature, other.width) == (ours.temperature, ours.width)


def table_of(results: Sequence[SystemResult]) -> dict[str, list[list[str]]]:
    """By setting, a table: speed over plain decoding by category, tokens per step behind it, and words."""
    settings = dict.fromkeys((each.temperature, each.width) for each in results)
    tables = {}
    for setting in settings:
        some = [each for each in results if (each.temperature, each.width) == setting]
        categories = [*dict.fromkeys(name for each in some for name in each.by_category if name != ALL), ALL]
        rows = [["", *categories, _speed_title(some[0]), "words"]]
        for each in some:
            cells = [
                _ratio_cell(each, each.by_category.get(name), interval=name == ALL) for name in categories
            ]
            rows.append([each.who, *cells, _speed(each), _words(each)])
        tables[setting_words(some[0])] = rows
    return tables


def overall_of(results: Sequence[SystemResult]) -> dict[str, list[list[str]]]:
    """By setting, a table over all categories: ratio with its interval, tokens per step and second, words."""
    tables: dict[str, list[list[str]]] = {}
    for each in results:
        head = ["", "over plain", "tok/step", _speed_title(each), "words"]
        rows = tables.setdefault(setting_words(each), [head])
        line = each.overall
        if line is None:
            rows.append([each.who, *[""] * 3, _words(each)])
            continue
        ratio = line.over_plain
        steps = "" if line.tokens_per_step is None else f"{line.tokens_per_step:.2f}"
        shown = f"{ratio.value:.2f}" if each.who == each.baseline else str(ratio)
        rows.append([each.who, f"{shown}{mark(each)}", steps, _speed(each), _words(each)])
    return tables


def _speed_title(result: SystemResult) -> str:
    return "tok/s" if result.width == 1 else "tok/s, all"


def _speed(result: SystemResult) -> str:
    """Tokens per second of the one that is asked, or of all that are asked at once."""
    if result.overall is None:
        return ""
    speed = result.overall.speed if result.width == 1 else result.throughput
    return f"{speed:.1f}{mark(result)}"


def vllm_caption(record: BenchRecord, *, quote: str = "") -> str:
    """How the vLLM servers of a record were started: what differs from vLLM's defaults, in quotes."""
    settings = dict.fromkeys(filter(None, map(_vllm_settings, record.runs)))
    if not settings:
        return "vLLM flags: not recorded; no vLLM server was started by the benchmark"
    return f"vLLM flags: {'; in another run: '.join(f'{quote}{each}{quote}' for each in settings)}"


def _vllm_settings(run: dict[str, Any]) -> str:
    """The flags and the environment of a run's vLLM servers; old records have the flags in a command only."""
    command = run["contestants"].get(VLLM, {}).get("command", [])
    flags = run.get("vllm_flags", command[command.index("serve") + 2 :] if "serve" in command else [])
    environment = [f"{name}={value}" for name, value in run.get("vllm_environment", {}).items()]
    return " ".join(
        [*([shlex.join(flags)] if flags else []), *(["with", *environment] if environment else [])]
    )


def markdown(results: Sequence[SystemResult], caption: str = "") -> str:
    """The tables for documents, and a caption below them."""
    parts = []
    for title, (head, *rows) in table_of(results).items():
        ruler = ["---", *["---:"] * (len(head) - 2), "---"]
        bold = [[f"**{row[0]}**" if row[0] == FORERUN else row[0], *row[1:]] for row in rows]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *bold))
        parts.append(f"{title}:\n\n{lines}")
    return "\n\n".join([*parts, *([caption] if caption else [])])


def mark(result: SystemResult) -> str:
    """What stands behind every figure of a contestant; nothing, if all is well."""
    if not result.sound:
        return f" {WRONG}"
    return f" {DOUBTFUL}" if result.words.doubtful else ""


def _words(result: SystemResult) -> str:
    told = "plain" if result.who == result.baseline else result.words.told()
    if result.suspect and result.words.honest:
        told += ", but not at other settings"
    return f"{WRONG} {result.num_missing} missing; {told}" if result.num_missing else told


def _ratio_cell(result: SystemResult, line: CategoryResult | None, *, interval: bool) -> str:
    if line is None:
        return ""
    shown = interval and result.who != result.baseline
    ratio = str(line.over_plain) if shown else f"{line.over_plain.value:.2f}"
    steps = (
        ""
        if line.tokens_per_step is None or result.who == result.baseline
        else f" ({line.tokens_per_step:.2f})"
    )
    return f"{ratio}{steps}{mark(result)}"


def _summarised(record: BenchRecord) -> list[SystemResult]:
    results = summarise(record)
    if not any(each.overall for each in results):
        raise UnreadableRecord("the record has no answer that could be timed")
    return results


def _first(results: Sequence[SystemResult]) -> list[SystemResult]:
    """Those of the first setting: greedy and alone, if that was asked."""
    setting = min((each.temperature, each.width) for each in results)
    return [each for each in results if (each.temperature, each.width) == setting]


def setting_words(result: SystemResult) -> str:
    """Temperature and width, as a title."""
    how = "Greedy" if not result.temperature else f"Temperature {result.temperature:g}"
    return f"{how}, {result.width} at a time"


def _subtitle(record: BenchRecord) -> str:
    asked, machine = record.runs[-1]["asked"], record.runs[-1]["machine"]
    return (
        f"{asked['model']}, {len(asked['questions'])} questions, at most {asked['num_tokens']} tokens each;"
        f" {machine['cpu']}, {machine['threads']} threads"
    )


def _setting(results: Sequence[SystemResult], temperature: float, width: int) -> str:
    """The section of one setting: table, speeds, depth and waiting."""
    some = [each for each in results if (each.temperature, each.width) == (temperature, width)]
    caption = (
        "Medians over questions, with 95 % intervals. 1 is the same engine without speculation, asked in turn"
        " with it. Hollow: erred, or said other words. The limit is estimated from the accepted draft tokens"
        " and measured step costs; noise can carry a measured ratio above it."
    )
    return (
        f"<h2>{escape(setting_words(some[0]))}</h2>{_table(some)}"
        f"<figure class='wide'>{as_svg(partial(draw_speed, some))}<figcaption>{caption}</figcaption></figure>"
        f"<div class='pair'><figure>{as_svg(partial(draw_survival, some))}<figcaption>What stands by depth:"
        " the area below is what a step gains.</figcaption></figure>"
        f"<figure>{as_svg(partial(draw_waiting, some))}<figcaption>What a reader waits between tokens; tokens"
        " that come together wait 0.</figcaption></figure></div>"
    )


def _section(title: str, told: Sequence[str]) -> str:
    if not told:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(each)}</li>' for each in told)}</ul>"


def _loads(results: Sequence[SystemResult]) -> str:
    parts = []
    for temperature in dict.fromkeys(each.temperature for each in results):
        some = [each for each in results if each.temperature == temperature]
        title = "greedy" if not temperature else f"temperature {temperature:g}"
        parts.append(
            f"<h2>Throughput by load, {title}</h2><figure>{as_svg(partial(draw_throughput, some))}</figure>"
        )
    return "".join(parts)


def _table(results: Sequence[SystemResult]) -> str:
    titles = (
        "", "over plain", "end to end", "tokens/s", "all together", "tokens/step", "estimated limit",
        "first token", "between, 50 / 99 %",
    )  # fmt: skip
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = "".join(map(_row, results))
    return f"<div class='wide'><table><tr>{head}<th class='words'>words</th></tr>{rows}</table></div>"


def _row(result: SystemResult) -> str:
    kinds = {"ours": result.who == FORERUN, "wrong": not result.sound}
    kind = " ".join(name for name, holds in kinds.items() if holds)
    name = f"{escape(result.who)} <span class='small'>{escape(result.precision)}</span>"
    cells = "".join(f"<td>{cell}</td>" for cell in (name, *_figures(result)))
    return f"<tr class='{kind}'>{cells}<td class='words'>{escape(_words(result))}</td></tr>"


def _figures(result: SystemResult) -> list[str]:
    line = result.overall
    if line is None:
        return [""] * 8
    ratio, whole = line.over_plain, line.end_to_end
    return [
        f"{mark(result)} {_with_interval(ratio)}".lstrip(),
        _with_interval(whole),
        f"{line.speed:.1f}",
        f"{result.throughput:.1f}",
        "" if line.tokens_per_step is None else f"{line.tokens_per_step:.2f}",
        "" if not line.limit or result.who == result.baseline else _with_interval(line.limit),
        f"{line.first_token[0] * 1000:.0f} ms",
        f"{line.between_tokens[0] * 1000:.0f} / {line.between_tokens[2] * 1000:.0f} ms",
    ]


def _with_interval(ratio: RatioEstimate) -> str:
    return f"{ratio.value:.2f} <span class='small interval'>[{ratio.low:.2f}, {ratio.high:.2f}]</span>"


def as_values(record: BenchRecord) -> list[dict[str, Any]]:
    """Every result as values."""
    return [
        {key: value for key, value in asdict(each).items() if key not in {"between", "beside"}}
        | {"sound": each.sound}
        for each in summarise(record)
    ]
