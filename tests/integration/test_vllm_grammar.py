"""Tokens that a grammar forces, with the real xgrammar and the real tokenizer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the extra `vllm`")

import xgrammar
from transformers import AutoTokenizer
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from forerun.engines.vllm.grammar import forced_tokens


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def compiler(tokenizer: Any) -> xgrammar.GrammarCompiler:
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer))


def grammar_of(compiled: Any) -> Any:
    """A grammar as vLLM wraps it."""
    return XgrammarGrammar(compiled.tokenizer_info.vocab_size, xgrammar.GrammarMatcher(compiled), compiled)


def bits(grammar: Any) -> list[int]:
    """The tokens that the grammar allows next: its observable state."""
    mask = xgrammar.allocate_token_bitmask(1, grammar.vocab_size)
    grammar.matcher.fill_next_token_bitmask(mask, 0)
    allowed: list[int] = mask[0].tolist()
    return allowed


def test_text_that_the_grammar_forces_is_drafted(compiler: xgrammar.GrammarCompiler, tokenizer: Any) -> None:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_regex("(yes|no), this is how it ends"))
    before = bits(grammar)
    assert forced_tokens(grammar, [], 24, encode) == [], "yes or no: nothing is forced"
    found = forced_tokens(grammar, encode("yes"), 24, encode)
    assert tokenizer.decode(found[:-1]) == ", this is how it ends"
    assert found[-1] == tokenizer.eos_token_id, "then only the end is allowed"
    assert bits(grammar) == before, "the state of the grammar is unchanged"


def test_the_number_of_forced_tokens_is_bounded(compiler: xgrammar.GrammarCompiler, tokenizer: Any) -> None:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_regex("one two three four five six seven"))
    whole = forced_tokens(grammar, [], 24, encode)
    for max_tokens in range(8):
        assert forced_tokens(grammar, [], max_tokens, encode) == whole[:max_tokens]


def test_keys_of_a_schema_are_forced(compiler: xgrammar.GrammarCompiler, tokenizer: Any) -> None:
    schema = (
        '{"type": "object", "properties": {"status_of_the_order": {"enum": ["shipped_yesterday"]}},'
        ' "required": ["status_of_the_order"], "additionalProperties": false}'
    )
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_json_schema(schema, any_whitespace=False))
    found = forced_tokens(grammar, [], 24, encode)
    assert tokenizer.decode(found, skip_special_tokens=True) == '{"status_of_the_order": "shipped_yesterday"}'


def test_rejected_drafts_ended_grammars_and_other_grammars_force_nothing(
    compiler: xgrammar.GrammarCompiler, tokenizer: Any
) -> None:
    encode = partial(tokenizer.encode, add_special_tokens=False)
    grammar = grammar_of(compiler.compile_regex("only this text"))
    before = bits(grammar)
    assert forced_tokens(grammar, encode("something else"), 8, encode) == []
    assert bits(grammar) == before
    assert forced_tokens(SimpleNamespace(), [], 8, encode) == [], "not a grammar of xgrammar"
    ended = grammar_of(compiler.compile_regex("a"))
    assert ended.accept_tokens("request", [*encode("a"), tokenizer.eos_token_id])
    assert forced_tokens(ended, [], 8, encode) == []
