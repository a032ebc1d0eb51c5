"""Prometheus collector for the counters that the schedulers share; each scrape reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forerun.engines.vllm.metric_names import GAUGES, HELP, RENAMED, RENAMED_LABELS, deprecation
from forerun.engines.vllm.shared_counters import read_counters

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
Sample: TypeAlias = tuple[Mapping[str, str], float]


class SpecDecodeCollector(Collector):
    """Exports the counters of some vLLM instances, labelled by engine."""

    def __init__(self, instances: Collection[str]) -> None:
        self.instances = instances

    def collect(self) -> Iterator[Family]:
        """One family per metric, and one per deprecated name."""
        samples = defaultdict(list)
        for instance in self.instances:
            for engine, (name, labels), value in read_counters(instance):
                samples[name].append(({**dict(labels), "engine": engine}, value))
        for name, found in samples.items():
            is_gauge = name in GAUGES
            yield _family(is_gauge, name, HELP[name], found)
            if name in RENAMED:
                old = [(_old_labels(labels), value) for labels, value in found]
                yield _family(is_gauge, RENAMED[name], deprecation(name), old)

    def describe(self) -> list[Family]:
        """Nothing: engines start and stop after registration."""
        return []


def _family(is_gauge: bool, name: str, text: str, samples: Sequence[Sample]) -> Family:
    kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
    family = kind(name, text, labels=list(samples[0][0]))
    for labels, value in samples:
        family.add_metric(list(labels.values()), value)
    return family


def _old_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {RENAMED_LABELS.get(key, key): value for key, value in labels.items()}
