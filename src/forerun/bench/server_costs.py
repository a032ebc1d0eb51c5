"""What passes cost, as forerun's server believes."""

from __future__ import annotations

import re
from typing import Final

from forerun.bench.record import Costs
from forerun.servers.endpoint import Endpoint

_LABEL: Final = re.compile(r'drawn="(\w+)".*rows="(\d+)"|rows="(\d+)".*drawn="(\w+)"')


def pass_costs(server: Endpoint) -> dict[bool, Costs]:
    """Seconds by rows, of greedy passes and of those that draw; nothing where a server does not tell."""
    costs: dict[bool, Costs] = {}
    for label, seconds in server.metric("forerun:pass_seconds").items():
        if seconds and (found := _LABEL.search(label)):
            drawn, rows = found[1] or found[4], found[2] or found[3]
            costs.setdefault(drawn == "yes", {})[int(rows)] = seconds
    return costs
