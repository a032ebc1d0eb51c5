from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.drafters import corpus as corpus_module
from forerun.drafters import corpus_lookup
from forerun.drafters.corpus import MAGIC, Corpus, fingerprint
from forerun.drafters.corpus_builder import build
from forerun.drafters.matches import BREAK, CONTINUATION, CORPUS, MATCH_LENGTH, MAX_MATCH, POSITION, SOURCE
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import InvalidCorpus, VocabularyMismatch
from forerun.types import RequestView
from unit.drafters import naive

DEPTH = 6

documents = st.lists(st.lists(st.integers(0, 3), max_size=90), min_size=1, max_size=5).filter(any)
contexts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus") / "corpus.fri"


def build_corpus(texts: list[list[int]], file: Path, offset: int = 0) -> tuple[Corpus, list[int]]:
    """A corpus of these documents, and its text with breaks."""
    arrays = [np.array(text, dtype=np.int64) + offset for text in texts]
    build(arrays, file, vocabulary="fingerprint", tokenizer="a tokenizer")
    return Corpus(file), [token for array in arrays if len(array) for token in [*array.tolist(), BREAK]]


def look_up(corpus: Corpus, context: list[int], max_matches: int) -> np.ndarray:
    tail = np.full(MAX_MATCH, BREAK - 1, dtype=np.int32)
    newest = context[::-1][:MAX_MATCH]
    tail[: len(newest)] = newest
    rows = np.full((max_matches, CONTINUATION + DEPTH), -9, dtype=np.int32)
    return rows[: corpus.look_up(tail, rows, DEPTH)]


def check(corpus: Corpus, text: list[int], context: list[int], max_matches: int) -> None:
    """The matches are the longest ones, as many as requested."""
    rows = look_up(corpus, context, max_matches)
    found = naive.occurrences(text, context, own=False)
    assert (
        rows[:, MATCH_LENGTH].tolist() == sorted((length for length, _ in found), reverse=True)[:max_matches]
    )
    lengths = {position: length for length, position in found}
    assert len(set(rows[:, POSITION].tolist())) == len(rows)
    for row in rows:
        position = int(row[POSITION])
        assert lengths[position] == row[MATCH_LENGTH]
        assert row[SOURCE] == CORPUS
        assert row[CONTINUATION:].tolist() == naive.continuation(text, position + 1, DEPTH, own=False)


@given(documents, contexts, st.integers(1, 40), st.sampled_from([0, 70_000]))
def test_a_corpus_finds_the_longest_matches(
    file: Path, texts: list[list[int]], context: list[int], max_matches: int, offset: int
) -> None:
    corpus, text = build_corpus(texts, file, offset)
    check(corpus, text, [token + offset for token in context], max_matches)


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_a_corpus_larger_than_its_guide_finds_the_longest_matches(file: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 3, 6000)
    text[3000:4000] = text[:1000]
    text[5000:5100] = 1
    corpus, whole = build_corpus([text.tolist()], file)
    for _ in range(20):
        position, length = int(rng.integers(0, 6000)), int(rng.integers(1, 50))
        context = [int(rng.integers(0, 4)), *whole[max(0, position - length) : position]]
        check(corpus, whole, [token for token in context if token != BREAK], max_matches=16)


def test_the_check_for_the_longest_matches_can_fail(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, text = build_corpus([[0, 1, 2, 3, 1, 2, 0, 2, 1, 0, 3]], file)
    check(corpus, text, [3, 1, 2], max_matches=2)
    search = naive.sabotaged(corpus_lookup._search, _before=lambda text, position, match, tail: False)
    monkeypatch.setattr(
        corpus_module, "look_up_corpus", naive.sabotaged(corpus_lookup.look_up_corpus, _search=search)
    )
    with pytest.raises(AssertionError):
        check(corpus, text, [3, 1, 2], max_matches=2)


def test_the_suffix_drafter_drafts_from_a_corpus(file: Path) -> None:
    corpus, _ = build_corpus([[50, 51, 52, 53], [60, 51, 70]], file)
    (draft,) = SuffixDrafter(corpora=[corpus]).propose([RequestView("r", [9, 50, 51])], [4])
    assert draft.tokens[:2].tolist() == [52, 53]
    assert 70 in draft.tokens


def test_a_truncated_file_is_rejected(file: Path) -> None:
    build_corpus([[1, 2, 3] * 1000], file)
    whole = file.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 4096, 60, 20, 3):
        file.write_bytes(whole[:length])
        with pytest.raises(InvalidCorpus, match=r"truncated|damaged|not a corpus") as caught:
            Corpus(file)
        assert "build" in str(caught.value)


def test_a_file_of_another_version_is_rejected(file: Path) -> None:
    build_corpus([[1, 2, 3]], file)
    content = bytearray(file.read_bytes())
    content[len(MAGIC)] = 7
    file.write_bytes(content)
    with pytest.raises(InvalidCorpus, match=r"version 7, expected 1"):
        Corpus(file)


def test_a_damaged_header_is_rejected(file: Path) -> None:
    build_corpus([[1, 2, 3]], file)
    content = bytearray(file.read_bytes())
    content[len(MAGIC) + 20] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidCorpus, match="damaged"):
        Corpus(file)


def test_verify_detects_a_damaged_body_and_lookups_in_it_are_safe(file: Path) -> None:
    corpus, _ = build_corpus([[1, 2, 3] * 1000], file)
    corpus.verify()
    content = bytearray(file.read_bytes())
    begin = corpus.header["start"] + corpus.header["sections"]["places"]["offset"]
    content[begin : begin + 12_000] = b"\xff" * 12_000
    copy = file.with_name("damaged.fri")
    copy.write_bytes(content)
    damaged = Corpus(copy)
    look_up(damaged, [1, 2, 3], 16)
    with pytest.raises(InvalidCorpus, match=r"places .* damaged"):
        damaged.verify()


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int32, np.uint32, np.int64])
def test_token_ids_of_any_dtype_round_trip(file: Path, kind: type) -> None:
    top = min(int(np.iinfo(kind).max), 300_000)
    build([np.array([0, top, 7], dtype=kind)], file, vocabulary="fingerprint", tokenizer="a tokenizer")
    assert (Corpus(file).text.astype(np.int64) - 1).tolist() == [0, top, 7, BREAK]


def test_negative_token_ids_are_rejected(file: Path) -> None:
    with pytest.raises(InvalidCorpus, match="from -2 to 7"):
        build([np.array([7, -2])], file, vocabulary="fingerprint", tokenizer="a tokenizer")


def test_a_file_of_another_format_is_rejected(file: Path) -> None:
    file.write_text("Once upon a time, there was a text without an index.")
    with pytest.raises(InvalidCorpus, match="not a corpus"):
        Corpus(file)
    with pytest.raises(InvalidCorpus, match="cannot open"):
        Corpus(file.with_name("nowhere.fri"))


def test_a_corpus_of_another_tokenizer_is_rejected(file: Path) -> None:
    build_corpus([[1, 2, 3]], file)
    assert len(Corpus(file, vocabulary="fingerprint")) == 4
    with pytest.raises(VocabularyMismatch, match=r"'a tokenizer'.*corpus build --tokenizer"):
        Corpus(file, vocabulary="other fingerprint")


def test_vocabularies_of_equal_size_have_different_fingerprints() -> None:
    assert fingerprint({"a": 0, "b": 1}) == fingerprint({"b": 1, "a": 0})
    assert fingerprint({"a": 0, "b": 1}) != fingerprint({"a": 1, "b": 0})
    assert fingerprint({"a": 0, "b": 1}) != fingerprint({"a": 0, "c": 1})


def test_a_failed_build_leaves_the_existing_file(file: Path) -> None:
    build_corpus([[1, 2, 3]], file)
    before = file.read_bytes()
    with pytest.raises(InvalidCorpus, match="no text"):
        build([np.array([], dtype=np.int64)], file, vocabulary="fingerprint", tokenizer="a tokenizer")
    assert file.read_bytes() == before
    assert list(file.parent.glob("*.part")) == []
    with pytest.raises(InvalidCorpus, match="cannot write"):
        build([np.array([1])], file / "nowhere" / "c.fri", vocabulary="fingerprint", tokenizer="a tokenizer")
