"""What a request may ask of speculation, in `vllm_xargs`: how far, who guesses, how strictly.

    {"vllm_xargs": {"forerun_max_draft": 4, "forerun_drafter": "ngram", "forerun_lenience": 0.9}}

With `"forerun_adaptive": 0` a request gets every guess there is, up to its bound, whether it pays or not.
Each bounds what the server was told, or picks from it; none of them can ask for more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from forerun.errors import InvalidRequest, did_you_mean

PREFIX: Final = "forerun_"
NOBODY: Final = "none"
"""The drafter that never guesses."""

_MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What one request asks for; None is whatever the server does.

    The metadata is the reference of the options: `make reference` writes it into the documentation.
    """

    max_draft: int | None = field(
        default=None,
        metadata={
            "values": f"integer, 0 to {_MOST}",
            "help": "Maximum number of draft tokens per step; 0 disables speculation for the request.",
        },
    )
    drafter: str | None = field(
        default=None,
        metadata={
            "values": f"name of one of the server's drafters, or `{NOBODY}`",
            "help": f"The drafter that proposes for the request; `{NOBODY}` disables speculation.",
        },
    )
    lenience: float | None = field(
        default=None,
        metadata={
            "values": "number, above 0 and at most 1",
            "help": "Below 1, acceptance is lossy: no token is more than 1/lenience times as likely as the"
            " target model makes it.",
        },
    )
    adaptive: bool | None = field(
        default=None,
        metadata={
            "values": "0 or 1",
            "help": "0 verifies every draft token up to the maximum, whether or not it is predicted to pay.",
        },
    )

    @classmethod
    def parse(cls, extra_args: Mapping[str, Any] | None, drafters: Collection[str]) -> RequestOptions:
        """Read them, or raise `InvalidRequest` with a message for whoever sent the request."""
        asked = {key: value for key, value in (extra_args or {}).items() if key.startswith(PREFIX)}
        if not asked:
            return DEFAULT_OPTIONS
        for key in asked:
            if key not in _READERS:
                raise InvalidRequest(f"unknown {key!r}; {did_you_mean(key, _READERS)}")
        read: dict[str, Any] = {
            key.removeprefix(PREFIX): _READERS[key](value) for key, value in asked.items()
        }
        wishes = cls(**read)
        if wishes.drafter not in {None, NOBODY, *drafters}:
            raise InvalidRequest(
                f"forerun_drafter is {wishes.drafter!r}; this server has {', '.join([*drafters, NOBODY])}"
            )
        return wishes

    @classmethod
    def read(cls, extra_args: Mapping[str, Any] | None, drafters: Collection[str]) -> RequestOptions:
        """The same behind the front end, which has refused what cannot be meant; if it has not, it is
        ignored: nobody's request may stop an engine.
        """
        try:
            return cls.parse(extra_args, drafters)
        except InvalidRequest:
            return DEFAULT_OPTIONS


DEFAULT_OPTIONS: Final = RequestOptions()


def _max_draft(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return value
    raise InvalidRequest(f"forerun_max_draft is {value!r}; it must be a whole number from 0 to {_MOST}")


def _drafter(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(f"forerun_drafter is {value!r}; it must be the name of a drafter, or {NOBODY!r}")


def _lenience(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value <= 1:
        return float(value)
    raise InvalidRequest(f"forerun_lenience is {value!r}; it must be more than 0 and at most 1")


def _adaptive(value: Any) -> bool:
    if value in (0, 1):
        return bool(value)
    raise InvalidRequest(f"forerun_adaptive is {value!r}; it must be 0 or 1")


_READERS: Final = {
    "forerun_max_draft": _max_draft,
    "forerun_drafter": _drafter,
    "forerun_lenience": _lenience,
    "forerun_adaptive": _adaptive,
}
