"""Step costs from the metrics of a forerun server."""

from __future__ import annotations

import re
from typing import Final

from forerun.bench.record import StepCosts
from forerun.servers.endpoint import Endpoint

_ROWS: Final = re.compile(r'\brows="(\d+)"')
_SAMPLED: Final = re.compile(r'\b(?:sampled|drawn)="(\w+)"')
"""Older servers call the label `drawn`, and the metric `forerun:pass_seconds`."""


def read_step_costs(server: Endpoint) -> dict[bool, StepCosts]:
    """Seconds by rows, by whether tokens are sampled; empty if the server does not export them."""
    costs: dict[bool, StepCosts] = {}
    values = server.read_metric("forerun:step_seconds") or server.read_metric("forerun:pass_seconds")
    for labels, seconds in values.items():
        rows, sampled = _ROWS.search(labels), _SAMPLED.search(labels)
        if seconds and rows and sampled:
            costs.setdefault(sampled[1] == "yes", {})[int(rows[1])] = seconds
    return costs
