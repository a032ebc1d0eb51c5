from __future__ import annotations

from pathlib import Path

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.drafters import corpus as corpus_module
from forerun.drafters.corpus import MAGIC, Corpus, fingerprint
from forerun.drafters.corpus_builder import build
from forerun.drafters.matches import AHEAD, BREAK, CORPUS, LONGEST, MATCH, PLACE, SOURCE
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import InvalidCorpus, VocabularyMismatch
from forerun.types import RequestView

DEPTH = 6

documents = st.lists(st.lists(st.integers(0, 3), max_size=90), min_size=1, max_size=5).filter(any)
contexts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus") / "corpus.fri"


def built(texts: list[list[int]], file: Path, offset: int = 0) -> tuple[Corpus, list[int]]:
    """A corpus of these documents, and its text with the breaks that are in it."""
    arrays = [np.array(text, dtype=np.int64) + offset for text in texts]
    build(arrays, file, vocabulary="words", tokenizer="a tokenizer")
    return Corpus(file), [token for array in arrays if len(array) for token in [*array.tolist(), BREAK]]


def looked_up(corpus: Corpus, context: list[int], most: int) -> np.ndarray:
    tail = np.full(LONGEST, BREAK - 1, dtype=np.int32)
    newest = context[::-1][:LONGEST]
    tail[: len(newest)] = newest
    rows = np.full((most, AHEAD + DEPTH), -9, dtype=np.int32)
    return rows[: corpus.look_up(tail, rows, DEPTH)]


def check(corpus: Corpus, text: list[int], context: list[int], most: int) -> None:
    """The places found are those of the longest matches, as many as asked for."""
    rows = looked_up(corpus, context, most)
    found = naive.places(text, context, own=False)
    assert rows[:, MATCH].tolist() == sorted((length for length, _ in found), reverse=True)[:most]
    lengths = {place: length for length, place in found}
    assert len(set(rows[:, PLACE].tolist())) == len(rows)
    for row in rows:
        place = int(row[PLACE])
        assert lengths[place] == row[MATCH]
        assert row[SOURCE] == CORPUS
        assert row[AHEAD:].tolist() == naive.ahead(text, place + 1, DEPTH, own=False)


@given(documents, contexts, st.integers(1, 40), st.sampled_from([0, 70_000]))
def test_a_corpus_finds_the_longest_matches(
    file: Path, texts: list[list[int]], context: list[int], most: int, offset: int
) -> None:
    corpus, text = built(texts, file, offset)
    check(corpus, text, [token + offset for token in context], most)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_a_corpus_larger_than_its_guide_finds_them_too(file: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 3, 6000)
    text[3000:4000] = text[:1000]
    text[5000:5100] = 1
    corpus, whole = built([text.tolist()], file)
    for _ in range(20):
        place, length = int(rng.integers(0, 6000)), int(rng.integers(1, 50))
        context = [int(rng.integers(0, 4)), *whole[max(0, place - length) : place]]
        check(corpus, whole, [token for token in context if token != BREAK], most=16)


def test_the_test_for_the_longest_matches_can_fail(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, text = built([[0, 1, 2, 3, 1, 2, 0, 2, 1, 0, 3]], file)
    check(corpus, text, [3, 1, 2], most=2)
    search = naive.sabotaged(corpus_module._search, _before=lambda text, place, match, tail: False)
    monkeypatch.setattr(corpus_module, "consult", naive.sabotaged(corpus_module.consult, _search=search))
    with pytest.raises(AssertionError):
        check(corpus, text, [3, 1, 2], most=2)


def test_the_drafter_guesses_from_a_corpus(file: Path) -> None:
    corpus, _ = built([[50, 51, 52, 53], [60, 51, 70]], file)
    (draft,) = SuffixDrafter(corpora=[corpus]).propose([RequestView("r", [9, 50, 51])], [4])
    assert draft.tokens[:2].tolist() == [52, 53]
    assert 70 in draft.tokens


def test_a_file_that_was_cut_off_is_refused(file: Path) -> None:
    built([[1, 2, 3] * 1000], file)
    whole = file.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 4096, 60, 20, 3):
        file.write_bytes(whole[:length])
        with pytest.raises(InvalidCorpus, match=r"cut off|damaged|not a corpus") as caught:
            Corpus(file)
        assert "build" in str(caught.value)


def test_a_file_of_another_version_is_refused(file: Path) -> None:
    built([[1, 2, 3]], file)
    content = bytearray(file.read_bytes())
    content[len(MAGIC)] = 7
    file.write_bytes(content)
    with pytest.raises(InvalidCorpus, match="version 7, and this forerun reads 1: build it again"):
        Corpus(file)


def test_a_damaged_header_is_refused(file: Path) -> None:
    built([[1, 2, 3]], file)
    content = bytearray(file.read_bytes())
    content[len(MAGIC) + 20] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidCorpus, match="damaged"):
        Corpus(file)


def test_a_damaged_body_is_noticed_and_does_no_harm(file: Path) -> None:
    corpus, _ = built([[1, 2, 3] * 1000], file)
    corpus.verify()
    content = bytearray(file.read_bytes())
    begin = corpus.header["start"] + corpus.header["sections"]["places"]["offset"]
    content[begin : begin + 12_000] = b"\xff" * 12_000
    copy = file.with_name("damaged.fri")
    copy.write_bytes(content)
    damaged = Corpus(copy)
    looked_up(damaged, [1, 2, 3], 16)
    with pytest.raises(InvalidCorpus, match=r"places .* damaged"):
        damaged.verify()


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int32, np.uint32, np.int64])
def test_token_ids_of_any_type_come_out_as_they_went_in(file: Path, kind: type) -> None:
    top = min(int(np.iinfo(kind).max), 300_000)
    build([np.array([0, top, 7], dtype=kind)], file, vocabulary="words", tokenizer="a tokenizer")
    assert (Corpus(file).text.astype(np.int64) - 1).tolist() == [0, top, 7, BREAK]


def test_token_ids_below_zero_are_refused(file: Path) -> None:
    with pytest.raises(InvalidCorpus, match="from -2 to 7"):
        build([np.array([7, -2])], file, vocabulary="words", tokenizer="a tokenizer")


def test_a_file_that_is_something_else_is_refused(file: Path) -> None:
    file.write_text("Once upon a time, there was a text that nobody had indexed.")
    with pytest.raises(InvalidCorpus, match="not a corpus"):
        Corpus(file)
    with pytest.raises(InvalidCorpus, match="cannot open"):
        Corpus(file.with_name("nowhere.fri"))


def test_a_corpus_of_another_tokenizer_is_refused(file: Path) -> None:
    built([[1, 2, 3]], file)
    assert len(Corpus(file, vocabulary="words")) == 4
    with pytest.raises(VocabularyMismatch, match=r"tokenizer 'a tokenizer'.*build it again"):
        Corpus(file, vocabulary="other words")


def test_two_vocabularies_of_the_same_size_are_not_the_same() -> None:
    assert fingerprint({"a": 0, "b": 1}) == fingerprint({"b": 1, "a": 0})
    assert fingerprint({"a": 0, "b": 1}) != fingerprint({"a": 1, "b": 0})
    assert fingerprint({"a": 0, "b": 1}) != fingerprint({"a": 0, "c": 1})


def test_a_corpus_that_fails_to_build_leaves_what_was_there(file: Path) -> None:
    built([[1, 2, 3]], file)
    before = file.read_bytes()
    with pytest.raises(InvalidCorpus, match="no text"):
        build([np.array([], dtype=np.int64)], file, vocabulary="words", tokenizer="a tokenizer")
    assert file.read_bytes() == before
    assert list(file.parent.glob("*.part")) == []
    with pytest.raises(InvalidCorpus, match="cannot write"):
        build([np.array([1])], file / "nowhere" / "c.fri", vocabulary="words", tokenizer="a tokenizer")
