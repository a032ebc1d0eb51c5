"""Our counts for Prometheus, read from where the schedulers keep them at every scrape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as PrometheusCollector

from forerun.engines.vllm.shared_counters import read
from forerun.engines.vllm.stats import GAUGES, HELP


class Collector(PrometheusCollector):
    """The counts of some vLLMs, by engine."""

    def __init__(self, instances: Collection[str]) -> None:
        self.instances = instances

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """A family for every count."""
        samples = defaultdict(list)
        for instance in self.instances:
            for engine, (name, labels), value in read(instance):
                samples[name].append(({**dict(labels), "engine": engine}, value))
        for name, found in samples.items():
            kind = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            family = kind(name, HELP[name], labels=list(found[0][0]))
            for labelled, value in found:
                family.add_metric(list(labelled.values()), value)
            yield family

    def describe(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Nothing yet: files come and go."""
        return []
