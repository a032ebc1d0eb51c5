"""Token ids to text and back. A token is not always a whole character, so text comes when it is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from forerun.errors import InvalidRequest, VocabularyMismatch

PromptLike: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or the messages of a chat."""

_UNSURE: Final = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for bytes that are no character, or not yet."""

_WINDOW: Final = 6
"""So many tokens are spelled again with the new ones: some tokens read differently at the beginning."""


class IncrementalDetokenizer:
    """Text as its tokens come: `add` returns what can no longer change, `rest` what is left at the end."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._num_sure = 0

    def add(self, token: int) -> str:
        """One more token: the text that is sure now, often nothing or its own."""
        self._tokens.append(token)
        new = self._new()
        if not new or new.endswith(_UNSURE):
            return ""
        self._settle()
        return new

    def rest(self) -> str:
        """There will be no more tokens."""
        new = self._new()
        self._settle()
        return new

    def _new(self) -> str:
        before = decode(self._tokenizer, self._tokens[: self._num_sure])
        return decode(self._tokenizer, self._tokens)[len(before) :]

    def _settle(self) -> None:
        del self._tokens[: max(0, len(self._tokens) - _WINDOW)]
        self._num_sure = len(self._tokens)


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of some tokens, without those that only steer the model."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


def encode(tokenizer: Any, prompt: PromptLike) -> list[int]:
    """The token ids of a prompt; messages go through the model's chat template."""
    if isinstance(prompt, str):
        return list(_demand(tokenizer)(prompt)["input_ids"])
    if len(prompt) and isinstance(prompt[0], Mapping):
        if not getattr(_demand(tokenizer), "chat_template", None):
            raise InvalidRequest("the model has no chat template: give the prompt as text")
        template = tokenizer.apply_chat_template
        return list(template(list(prompt), add_generation_prompt=True, return_dict=True)["input_ids"])
    return [_token(each) for each in prompt]


def check_same_vocabulary(target: Any, draft: Any) -> None:
    """Raise unless two tokenizers have the same table; equal sizes would not make them the same."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return
    token, where = min(ours.items() ^ theirs.items(), key=lambda item: item[1])
    raise VocabularyMismatch(
        f"the draft's tokens are not the target's (the first to differ is token {where}, {token!r});"
        " choose a draft of the same family"
    )


def _demand(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise InvalidRequest("the model came without a tokenizer: give prompts as lists of token ids")
    return tokenizer


def _token(each: object) -> int:
    if isinstance(each, bool) or not hasattr(each, "__index__"):
        raise InvalidRequest(
            f"a prompt holds {each!r}; it is text, a list of token ids, or a list of messages"
        )
    return int(each.__index__())
