"""What a request may ask of speculation, and what is told to those who ask for the impossible."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forerun.engines.vllm.request_options import DEFAULT_OPTIONS, RequestOptions
from forerun.errors import InvalidRequest

DRAFTERS = ("suffix", "ngram")


@pytest.mark.parametrize("extra_args", [None, {}, {"somebody_else": 7}])
def test_most_requests_ask_for_nothing(extra_args: Any) -> None:
    assert RequestOptions.parse(extra_args, DRAFTERS) is DEFAULT_OPTIONS


def test_wishes_are_read() -> None:
    asked = {"forerun_max_draft": 4, "forerun_drafter": "ngram", "forerun_lenience": 0.5, "other": "x"}
    assert RequestOptions.parse(asked, DRAFTERS) == RequestOptions(max_draft=4, drafter="ngram", lenience=0.5)
    assert RequestOptions.parse({"forerun_drafter": "none"}, DRAFTERS).drafter == "none"
    assert RequestOptions.parse({"forerun_max_draft": 0, "forerun_lenience": 1}, ()) == RequestOptions(
        0, None, 1.0
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("forerun_max_draft", value) for value in (-1, 1025, 10**30, 2.5, "4", True, None, [1], math.nan)),
        *(("forerun_drafter", value) for value in ("nobody", "", 3, None, ["suffix"], "grammar")),
        *(("forerun_lenience", value) for value in (0, -0.1, 1.01, 10**400, math.nan, "0.5", True, None)),
    ],
)
def test_absurd_values_are_refused_with_what_would_do(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{key} is .*; (it must be|this server has)"):
        RequestOptions.parse({key: value}, DRAFTERS)


def test_unknown_wishes_are_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'forerun_drafter'"):
        RequestOptions.parse({"forerun_draftr": "suffix"}, DRAFTERS)
    with pytest.raises(InvalidRequest, match="there are forerun_max_draft"):
        RequestOptions.parse({"forerun_zzz": 1}, DRAFTERS)


def test_behind_the_front_end_what_cannot_be_meant_is_ignored() -> None:
    assert RequestOptions.read({"forerun_max_draft": -1}, DRAFTERS) is DEFAULT_OPTIONS
    assert RequestOptions.read({"forerun_max_draft": 1}, DRAFTERS) == RequestOptions(max_draft=1)
