"""Prompts to token ids, and token ids to text. A character can span tokens, so decoding is incremental."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from forerun.errors import ForerunError, InvalidRequest, VocabularyMismatch

PromptLike: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages."""

_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"
"""A tokenizer decodes invalid or incomplete bytes to this."""

_WINDOW: Final = 6
"""Tokens decoded again as context: some decode differently at the beginning of a text."""


class IncrementalDetokenizer:
    """Decodes a stream of tokens: `add` returns text that can no longer change, `flush` the remainder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._num_final = 0

    def add(self, token: int) -> str:
        """Add a token; returns the text that is final now, possibly none."""
        self._tokens.append(token)
        new = self._new()
        if not new or new.endswith(_INCOMPLETE):
            return ""
        self._finalize()
        return new

    def flush(self) -> str:
        """End the stream; returns the remaining text."""
        new = self._new()
        self._finalize()
        return new

    def _new(self) -> str:
        before = decode(self._tokenizer, self._tokens[: self._num_final])
        return decode(self._tokenizer, self._tokens)[len(before) :]

    def _finalize(self) -> None:
        del self._tokens[: max(0, len(self._tokens) - _WINDOW)]
        self._num_final = len(self._tokens)


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens, without special tokens."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


def encode(tokenizer: Any, prompt: PromptLike) -> list[int]:
    """The token ids of a prompt; the model's chat template encodes messages. Every failure is a
    `ForerunError`.
    """
    try:
        return _encode(tokenizer, prompt)
    except ForerunError:
        raise
    except Exception as error:  # a chat template may raise anything
        raise InvalidRequest(f"the prompt cannot be encoded: {error}") from error


def encode_prediction(tokenizer: Any, prediction: str | Sequence[int]) -> tuple[int, ...]:
    """The token ids of a predicted output, without special tokens."""
    if not isinstance(prediction, str):
        return tuple(prediction)
    if tokenizer is None:
        raise InvalidRequest("a predicted text needs a tokenizer, and the model has none: pass tokenizer=")
    return tuple(tokenizer(prediction, add_special_tokens=False)["input_ids"])


def _encode(tokenizer: Any, prompt: PromptLike) -> list[int]:
    if isinstance(prompt, str):
        return list(_require(tokenizer)(prompt)["input_ids"])
    if len(prompt) and isinstance(prompt[0], Mapping):
        if not getattr(_require(tokenizer), "chat_template", None):
            raise InvalidRequest("the model has no chat template; pass the prompt as text")
        template = tokenizer.apply_chat_template
        return list(template(list(prompt), add_generation_prompt=True, return_dict=True)["input_ids"])
    return [_token(each) for each in prompt]


def check_same_vocabulary(target: Any, draft: Any) -> None:
    """Raise unless two tokenizers have the same vocabulary, token by token."""
    target_vocab, draft_vocab = target.get_vocab(), draft.get_vocab()
    if target_vocab == draft_vocab:
        return
    text, token = min(target_vocab.items() ^ draft_vocab.items(), key=lambda item: item[1])
    raise VocabularyMismatch(
        f"the draft model and the target have different vocabularies (first difference: token {token},"
        f" {text!r}); use a draft model of the same family"
    )


def _require(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise InvalidRequest("the model has no tokenizer; pass prompts as lists of token ids")
    return tokenizer


def _token(each: object) -> int:
    if isinstance(each, bool) or not hasattr(each, "__index__"):
        raise InvalidRequest(
            f"the prompt has {each!r}; expected text, a list of token ids or a list of messages"
        )
    return int(each.__index__())
