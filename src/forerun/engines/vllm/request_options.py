"""Speculation options of a request, in `vllm_xargs`: draft length, drafter, prediction and lenience.

    {"vllm_xargs": {"forerun_max_draft": 4, "forerun_drafter": "ngram", "forerun_lenience": 0.9}}

With `"forerun_adaptive": 0` every draft token of a request is verified, up to its maximum, whether or not it
is predicted to pay. `"forerun_invariant": 1` demands invariant mode. Options restrict or select among the
server's settings; they cannot exceed them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from forerun.engines.vllm.runner_choice import Runner
from forerun.errors import InvalidRequest, did_you_mean

PREFIX: Final = "forerun_"
PREDICTION_OPTION: Final = "forerun_prediction"
"""A text, which the front end replaces by its token ids."""

NO_DRAFTER: Final = "none"
"""The drafter name that disables speculation."""

_MAX_DRAFT_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of one request; None is the server's setting.

    The metadata is the reference of the options: `make reference` writes it into the documentation.
    """

    max_draft: int | None = field(
        default=None,
        metadata={
            "values": f"integer, 0 to {_MAX_DRAFT_LIMIT}",
            "help": "Maximum number of draft tokens per step; 0 disables speculation for the request.",
        },
    )
    drafter: str | None = field(
        default=None,
        metadata={
            "values": f"name of one of the server's drafters, or `{NO_DRAFTER}`",
            "help": f"The drafter that proposes for the request; `{NO_DRAFTER}` disables speculation.",
        },
    )
    lenience: float | None = field(
        default=None,
        metadata={
            "values": "number, above 0 and at most 1",
            "help": "Below 1, acceptance is lossy: no token is more than 1/lenience times as likely as the"
            " target model makes it. On vLLM's V2 model runner it must be 1.",
        },
    )
    adaptive: bool | None = field(
        default=None,
        metadata={
            "values": "0 or 1",
            "help": "0 verifies every draft token up to the maximum, whether or not it is predicted to pay.",
        },
    )

    invariant: bool | None = field(
        default=None,
        metadata={
            "values": "0 or 1",
            "help": "1 is an error unless the server runs in invariant mode.",
        },
    )

    prediction: str | tuple[int, ...] | None = field(
        default=None,
        metadata={
            "values": "text",
            "help": "Text that the output is expected to repeat in large part. Chat completions take it from"
            " OpenAI's parameter `prediction`.",
        },
    )

    @classmethod
    def parse(cls, extra_args: Mapping[str, Any] | None, drafters: Collection[str]) -> RequestOptions:
        """Parse them, or raise `InvalidRequest` with a message for the client."""
        given = {key: value for key, value in (extra_args or {}).items() if key.startswith(PREFIX)}
        if not given:
            return DEFAULT_OPTIONS
        for key in given:
            if key not in _PARSERS:
                raise InvalidRequest(f"unknown {key!r}; {did_you_mean(key, _PARSERS)}")
        values: dict[str, Any] = {
            key.removeprefix(PREFIX): _PARSERS[key](value) for key, value in given.items()
        }
        options = cls(**values)
        if options.drafter not in {None, NO_DRAFTER, *drafters}:
            known = ", ".join([*drafters, NO_DRAFTER])
            raise InvalidRequest(f"forerun_drafter is {options.drafter!r}; this server has {known}")
        return options

    def check_server(self, runner: Runner, *, invariant: bool) -> None:
        """Raise `InvalidRequest` for an option that the server's model runner or mode does not have."""
        if self.invariant and not invariant:
            raise InvalidRequest(
                "forerun_invariant is 1, and this server does not run in invariant mode; start it with"
                " --invariant, or leave the option out"
            )
        if runner == "v2" and self.lenience not in {None, 1}:
            raise InvalidRequest(
                f"forerun_lenience is {self.lenience}; this server verifies on vLLM's V2 model runner, which"
                " accepts draft tokens only where they equal the target's sample; leave it out, or use 1"
            )

    @classmethod
    def parse_or_default(
        cls, extra_args: Mapping[str, Any] | None, drafters: Collection[str]
    ) -> RequestOptions:
        """Parse them in the engine, after the front end has validated them; invalid ones are ignored.

        A request must not stop the engine.
        """
        try:
            return cls.parse(extra_args, drafters)
        except InvalidRequest:
            return DEFAULT_OPTIONS


DEFAULT_OPTIONS: Final = RequestOptions()


def _max_draft(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_DRAFT_LIMIT:
        return value
    raise InvalidRequest(
        f"forerun_max_draft is {value!r}; it must be an integer from 0 to {_MAX_DRAFT_LIMIT}"
    )


def _drafter(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(f"forerun_drafter is {value!r}; it must be the name of a drafter, or {NO_DRAFTER!r}")


def _lenience(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value <= 1:
        return float(value)
    raise InvalidRequest(f"forerun_lenience is {value!r}; it must be more than 0 and at most 1")


def _prediction(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, int) and 0 <= each < 2**31 for each in value):
        return tuple(value)
    raise InvalidRequest(f"{PREDICTION_OPTION} is a {type(value).__name__}; it must be text")


def _zero_or_one(name: str) -> Callable[[Any], bool]:
    def parse(value: Any) -> bool:
        if value in (0, 1):
            return bool(value)
        raise InvalidRequest(f"{name} is {value!r}; it must be 0 or 1")

    return parse


_PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    "forerun_max_draft": _max_draft,
    "forerun_drafter": _drafter,
    "forerun_lenience": _lenience,
    "forerun_adaptive": _zero_or_one("forerun_adaptive"),
    "forerun_invariant": _zero_or_one("forerun_invariant"),
    PREDICTION_OPTION: _prediction,
}
