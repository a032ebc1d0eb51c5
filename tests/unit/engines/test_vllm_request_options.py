"""Speculation options of requests, and the errors for invalid ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forerun.engines.vllm.request_options import DEFAULT_OPTIONS, RequestOptions
from forerun.errors import InvalidRequest

DRAFTERS = ("suffix", "ngram")
VALID = {"forerun_max_draft": "0 to 1024", "forerun_drafter": "none", "forerun_lenience": "at most 1"}


@pytest.mark.parametrize("extra_args", [None, {}, {"another_plugin": 7}])
def test_requests_without_options_get_the_defaults(extra_args: Any) -> None:
    assert RequestOptions.parse(extra_args, DRAFTERS) is DEFAULT_OPTIONS


def test_options_are_parsed() -> None:
    given = {"forerun_max_draft": 4, "forerun_drafter": "ngram", "forerun_lenience": 0.5, "other": "x"}
    assert RequestOptions.parse(given, DRAFTERS) == RequestOptions(max_draft=4, drafter="ngram", lenience=0.5)
    assert RequestOptions.parse({"forerun_drafter": "none"}, DRAFTERS).drafter == "none"
    assert RequestOptions.parse({"forerun_max_draft": 0, "forerun_lenience": 1}, ()) == RequestOptions(
        0, None, 1.0
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("forerun_max_draft", value) for value in (-1, 1025, 10**30, 2.5, "4", True, None, [1], math.nan)),
        *(("forerun_drafter", value) for value in ("unknown", "", 3, None, ["suffix"], "grammar")),
        *(("forerun_lenience", value) for value in (0, -0.1, 1.01, 10**400, math.nan, "0.5", True, None)),
    ],
)
def test_invalid_values_raise_with_the_valid_ones(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{key} is .*{VALID[key]}"):
        RequestOptions.parse({key: value}, DRAFTERS)


@pytest.mark.parametrize("key", ["forerun_adaptive", "forerun_invariant"])
def test_switches_are_zero_or_one(key: str) -> None:
    name = key.removeprefix("forerun_")
    assert [getattr(RequestOptions.parse({key: value}, ()), name) for value in (0, 1)] == [False, True]
    for value in (2, "1", None):
        with pytest.raises(InvalidRequest, match=f"{key} is .*0 or 1"):
            RequestOptions.parse({key: value}, ())


def test_a_request_can_demand_invariant_mode() -> None:
    options = RequestOptions(invariant=True)
    options.check_server("v1", invariant=True)
    with pytest.raises(InvalidRequest, match="--invariant"):
        options.check_server("v1", invariant=False)
    RequestOptions(invariant=False).check_server("v1", invariant=False)


def test_unknown_options_raise_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidRequest, match="'forerun_drafter'"):
        RequestOptions.parse({"forerun_draftr": "suffix"}, DRAFTERS)
    with pytest.raises(InvalidRequest, match="forerun_max_draft"):
        RequestOptions.parse({"forerun_zzz": 1}, DRAFTERS)


def test_invalid_options_are_ignored_in_the_engine() -> None:
    assert RequestOptions.parse_or_default({"forerun_max_draft": -1}, DRAFTERS) is DEFAULT_OPTIONS
    assert RequestOptions.parse_or_default({"forerun_max_draft": 1}, DRAFTERS) == RequestOptions(max_draft=1)
