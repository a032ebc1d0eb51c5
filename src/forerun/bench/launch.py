"""Starts the systems of a benchmark and measures those that answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from forerun.bench.record_writer import RecordWriter
from forerun.bench.run import BenchPlan, run_bench, warm_up
from forerun.bench.served_model import strip_directories
from forerun.bench.server_costs import read_step_costs
from forerun.bench.system_names import FORERUN_SYSTEMS
from forerun.bench.systems import System
from forerun.errors import ServerFailed
from forerun.servers.endpoint import Endpoint

REQUEST_TIMEOUT = 600.0
"""Seconds after which a request fails."""


def measure_systems(
    plan: BenchPlan,
    systems: Sequence[System],
    writer: RecordWriter,
    startup_timeout: float,
    on_progress: Callable[[int, str], None],
) -> None:
    """Start every server that is not running yet, run the plan on all systems, and record step costs.

    A server that does not start is excluded from the run.
    """
    with ExitStack() as stack:
        endpoints = {}
        for each in systems:
            on_progress(0, f"starting {each.name}")
            try:
                endpoints[each.name] = _connect(each, stack, writer, startup_timeout)
            except ServerFailed as error:
                writer.exclude(each.name, strip_directories(str(error)))
        warm_up(plan, endpoints, writer, lambda name: on_progress(0, f"warming up {name}"))
        run_bench(plan, endpoints, writer, on_progress, is_local=not all(each.url for each in systems))
        _record_costs(endpoints, writer)


def _connect(system: System, stack: ExitStack, writer: RecordWriter, startup_timeout: float) -> Endpoint:
    """The endpoint of a system, which is started if it has no URL."""
    url = system.url
    if not url:
        log = writer.file.with_name(f"{writer.file.stem}.{system.name}.log")
        url = stack.enter_context(system.start(log, startup_timeout)).url
    endpoint = Endpoint(url, timeout=REQUEST_TIMEOUT)
    stack.callback(endpoint.close)
    return endpoint


def _record_costs(endpoints: dict[str, Endpoint], writer: RecordWriter) -> None:
    """Record the step costs of the first server of forerun that still answers."""
    answering = (
        endpoint
        for name, endpoint in endpoints.items()
        if name in FORERUN_SYSTEMS and (writer.run, name) not in writer.record.excluded
    )
    for sampled, costs in next(filter(None, map(read_step_costs, answering)), {}).items():
        writer.add_costs(costs, sampled=sampled)
