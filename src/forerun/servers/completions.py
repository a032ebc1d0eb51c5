"""Prompts and completions, and the response formats in which servers return tokens.

Tokens come from the server itself, never from retokenized text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from forerun.errors import UnreadableAnswer

Token: TypeAlias = int | str
"""A token id, or the token's text if the server does not return ids."""

END: Final = "<end>"
"""Appended to a completion that ended before its limit, whether or not the server returned a token for it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as text, as token ids, or both."""

    text: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion; `num_accepted` draft tokens if the server reports them."""

    tokens: tuple[Token, ...]
    prompt_ids: tuple[int, ...] = ()
    num_accepted: int | None = None
    logprobs: tuple[dict[Token, float], ...] = ()


def parse_response(response: dict[str, Any], num_choices: int, max_tokens: int) -> list[Completion]:
    """All choices of a response; metrics of the whole request are attached to the first."""
    choices = [_parse_choice(choice, max_tokens) for choice in response["choices"]]
    if len(choices) != num_choices:
        raise UnreadableAnswer(
            f"the server returned {len(choices)} choices instead of {num_choices}: lower --choices"
        )
    speculation = (response.get("metrics") or {}).get("speculative_decoding") or {}
    timings = response.get("timings") or {}
    accepted = speculation.get("num_accepted_draft_tokens", timings.get("draft_n_accepted"))
    prompt = tuple(response.get("prompt_token_ids") or choices[0].prompt_ids)
    return [replace(choices[0], num_accepted=accepted, prompt_ids=prompt), *choices[1:]]


def _parse_choice(choice: dict[str, Any], num_tokens: int) -> Completion:
    """One choice, in any of the formats in which servers return tokens."""
    tokens = _tokens(choice)
    if not tokens and choice.get("text"):
        raise UnreadableAnswer(
            "the server does not return the tokens of its completion: it needs `return_token_ids` or"
            " `logprobs` (see docs/auditing.md for the flags of each server)"
        )
    ended = len(tokens) < num_tokens and choice.get("finish_reason") == "stop"
    return Completion(
        (*tokens, END) if ended else tokens,
        prompt_ids=tuple(choice.get("prompt_token_ids") or ()),
        logprobs=_logprobs(choice.get("logprobs") or {}),
    )


def _tokens(choice: dict[str, Any]) -> tuple[Token, ...]:
    """The tokens of a choice, as ids, bytes or text."""
    if choice.get("token_ids"):
        return tuple(choice["token_ids"])
    logprobs = choice.get("logprobs") or {}
    if content := logprobs.get("content"):
        return tuple(_chat_token(token) for token in content)
    return tuple(_completion_token(token) for token in logprobs.get("tokens") or ())


def _logprobs(logprobs: dict[str, Any]) -> tuple[dict[Token, float], ...]:
    """The top log-probabilities of each position."""
    if content := logprobs.get("content"):
        return tuple(
            {_chat_token(each): each["logprob"] for each in one.get("top_logprobs", ())} for one in content
        )
    return tuple(
        {_completion_token(token): value for token, value in (one or {}).items()}
        for one in logprobs.get("top_logprobs") or ()
    )


def _chat_token(token: dict[str, Any]) -> Token:
    """A token in the format of chat completions: by id, or by its bytes."""
    if isinstance(token.get("id"), int):
        return int(token["id"])
    if token.get("bytes"):
        return bytes(token["bytes"]).decode("utf-8", errors="backslashreplace")
    return _completion_token(token["token"])


def _completion_token(token: str) -> Token:
    """A token in the format of completions: `token_id:7`, or text."""
    head, _, number = token.partition(":")
    return int(number) if head == "token_id" and number.isdigit() else token
