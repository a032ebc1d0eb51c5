"""Step costs are read from the metrics of current and of older servers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forerun.bench.server_costs import read_step_costs
from forerun.servers.endpoint import Endpoint


class Server:
    """A server with one metric."""

    def __init__(self, name: str, values: dict[str, float]) -> None:
        self.name, self.values = name, values

    def read_metric(self, name: str) -> dict[str, float]:
        return self.values if name == self.name else {}


@pytest.mark.parametrize(
    ("metric", "label"), [("forerun:step_seconds", "sampled"), ("forerun:pass_seconds", "drawn")]
)
def test_step_costs_are_read_under_the_current_and_the_older_name(metric: str, label: str) -> None:
    values = {
        f'{{rows="1",{label}="no",engine="0"}}': 0.05,
        f'{{engine="0",{label}="no",rows="8"}}': 0.06,
        f'{{{label}="yes",rows="1"}}': 0.07,
        f'{{{label}="yes",rows="8"}}': 0.0,  # not measured
    }
    server: Any = Server(metric, values)
    assert read_step_costs(cast(Endpoint, server)) == {False: {1: 0.05, 8: 0.06}, True: {1: 0.07}}


def test_a_server_without_the_metric_has_no_step_costs() -> None:
    server: Any = Server("vllm:num_requests_running", {"{}": 1.0})
    assert read_step_costs(cast(Endpoint, server)) == {}
