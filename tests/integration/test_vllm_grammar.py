"""What a grammar forces, asked of the real xgrammar with the real tokenizer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the extra `vllm`")

import xgrammar
from transformers import AutoTokenizer

from forerun.engines.vllm.grammar import forced


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def compiler(tokenizer: Any) -> xgrammar.GrammarCompiler:
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer))


def grammar_of(compiled: Any) -> Any:
    """As vLLM holds one: a matcher and a size."""
    matcher = xgrammar.GrammarMatcher(compiled)
    return SimpleNamespace(
        matcher=matcher,
        vocab_size=compiled.tokenizer_info.vocab_size,
        is_terminated=matcher.is_terminated,
    )


def bits(grammar: Any) -> list[int]:
    """What the grammar allows next: its state, as far as it can be seen."""
    mask = xgrammar.allocate_token_bitmask(1, grammar.vocab_size)
    grammar.matcher.fill_next_token_bitmask(mask, 0)
    allowed: list[int] = mask[0].tolist()
    return allowed


def test_what_only_one_text_can_follow_is_guessed(compiler: xgrammar.GrammarCompiler, tokenizer: Any) -> None:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_regex("(yes|no), this is how it ends"))
    before = bits(grammar)
    assert forced(grammar, [], 24, encode) == [], "yes or no: nothing is forced"
    ahead = encode("yes")
    found = forced(grammar, ahead, 24, encode)
    assert tokenizer.decode(found[:-1]) == ", this is how it ends"
    assert found[-1] == tokenizer.eos_token_id, "after which nothing but the end is allowed"
    assert bits(grammar) == before, "the grammar is where it was"


def test_no_more_than_asked_for(compiler: xgrammar.GrammarCompiler, tokenizer: Any) -> None:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_regex("one two three four five six seven"))
    whole = forced(grammar, [], 24, encode)
    for most in range(8):
        assert forced(grammar, [], most, encode) == whole[:most]


def test_keys_of_a_schema_are_forced(compiler: xgrammar.GrammarCompiler, tokenizer: Any) -> None:
    schema = (
        '{"type": "object", "properties": {"status_of_the_order": {"enum": ["shipped_yesterday"]}},'
        ' "required": ["status_of_the_order"], "additionalProperties": false}'
    )
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_json_schema(schema, any_whitespace=False))
    found = forced(grammar, [], 24, encode)
    assert tokenizer.decode(found, skip_special_tokens=True) == '{"status_of_the_order": "shipped_yesterday"}'


def test_tokens_that_the_grammar_refuses_and_other_grammars(
    compiler: xgrammar.GrammarCompiler, tokenizer: Any
) -> None:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_regex("only this text"))
    before = bits(grammar)
    assert forced(grammar, encode("something else"), 8, encode) == []
    assert bits(grammar) == before
    assert forced(SimpleNamespace(), [], 8, encode) == [], "a grammar that cannot be asked"
    ended = grammar_of(compiler.compile_regex("a"))
    for token in (*encode("a"), tokenizer.eos_token_id):
        assert ended.matcher.accept_token(token)
    assert forced(ended, [], 8, encode) == []
