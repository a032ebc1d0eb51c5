"""Findings of a benchmark in sentences: speedups, failures, different output, and faster systems."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.bench.ratios import OVERALL, RatioEstimate
from forerun.bench.recorded_answer import MAX_STEAL_SHARE
from forerun.bench.report_tables import INVALID_MARK, mark, setting_title
from forerun.bench.summary import SystemResult
from forerun.bench.system_names import AS_SERVED, FORERUN, FORERUN_SYSTEMS
from forerun.exactness import guarantee


def headline(results: Sequence[SystemResult]) -> str:
    """The page's title: forerun's speedup at the first setting."""
    ours = next((each for each in first_setting(results) if each.system == FORERUN), None)
    if ours is None or ours.overall is None:
        return "Benchmark of speculative decoding"
    text = f"forerun: {_speedup_text(ours, ours.overall.speedup)}"
    return text if ours.is_valid else f"{text}; {INVALID_MARK} not valid: see the findings"


def findings(results: Sequence[SystemResult]) -> list[str]:
    """Sentences on forerun's speedups and guarantee, then on failures, different output and steal time of any
    system.
    """
    sentences = []
    for each in results:
        if each.system == FORERUN and each.overall is not None:
            limit = each.overall.limit
            text = f"{setting_title(each)}: {_speedup_text(each, each.overall.speedup)}; output:"
            text += f" {each.output.summary()}"
            if limit:
                text += f"; estimated limit of the accepted draft tokens: {limit}"
            sentences.append(text + ".")
    sentences += _guarantees(results)
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


def _guarantees(results: Sequence[SystemResult]) -> list[str]:
    """What holds for forerun's output in the precision that was measured."""
    precisions = dict.fromkeys(each.precision for each in results if each.system == FORERUN)
    dtypes = [None if each == AS_SERVED else each for each in precisions]
    return [f"forerun, {guarantee(dtype, invariant=False)}." for dtype in dtypes]


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
            ratios = other.relative.ratios_to(ours.relative, throughput=ours.concurrency > 1)
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


def first_setting(results: Sequence[SystemResult]) -> list[SystemResult]:
    """The results at the lowest temperature and concurrency."""
    setting = min((each.temperature, each.concurrency) for each in results)
    return [each for each in results if (each.temperature, each.concurrency) == setting]
