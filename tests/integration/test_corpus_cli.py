"""`forerun corpus` with a real tokenizer, and guessing from what it built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app
from forerun.drafters.corpus import Corpus
from forerun.drafters.documents import load_tokenizer, vocabulary_of
from forerun.errors import VocabularyMismatch

SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"
WORDS = ["[UNK]", *"abcdefgh", "\n"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of ten characters, saved as models save theirs."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `corpus`")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    directory = tmp_path_factory.mktemp("model")
    made.save(str(directory / "tokenizer.json"))
    return directory


def run(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result.output


def test_a_corpus_built_from_text_yields_drafts(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("abcd\nefgh")
    (tmp_path / "two.jsonl").write_text(
        json.dumps({"text": "aaa"}) + "\n" + json.dumps({"text": "hhh"}) + "\n"
    )
    output = tmp_path / "corpus.fri"
    shown = run(
        "corpus",
        "build",
        tmp_path / "one.txt",
        tmp_path / "two.jsonl",
        "--tokenizer",
        tokenizer,
        "-o",
        output,
    )
    assert "18 tokens of 2 files" in shown
    corpus = Corpus(output, vocabulary=vocabulary_of(load_tokenizer(str(tokenizer))))
    words = "".join("|" if token == 0 else WORDS[token - 1] for token in corpus.text)
    assert words == "abcd\nefgh|aaa|hhh|"
    assert json.loads(run("corpus", "show", output, "--json"))["num_tokens"] == 18
    assert "18 tokens of the tokenizer" in run("corpus", "show", output)


def test_a_long_text_is_split_at_line_ends_without_loss(tokenizer: Path, tmp_path: Path) -> None:
    line = "abcdefgh" * 1000 + "\n"
    (tmp_path / "long.txt").write_text(line * 30)
    output = tmp_path / "corpus.fri"
    run("corpus", "build", tmp_path / "long.txt", "--tokenizer", tokenizer / "tokenizer.json", "-o", output)
    assert len(Corpus(output)) == 30 * 8001 + 1


def test_truncation_and_padding_of_a_tokenizer_are_disabled(tokenizer: Path, tmp_path: Path) -> None:
    loaded = load_tokenizer(str(tokenizer))
    loaded.enable_truncation(5)
    loaded.enable_padding(length=8)
    loaded.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("abcdefgh" * 2)
    run("corpus", "build", tmp_path / "text.txt", "--tokenizer", tmp_path, "-o", tmp_path / "corpus.fri")
    assert len(Corpus(tmp_path / "corpus.fri")) == 17


def test_only_a_line_feed_ends_a_line(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text('{"text": "a\u2028b"}\n\n{"text": "c"}', encoding="utf-8")
    (tmp_path / "windows.txt").write_bytes(b"ab\r\ncd")
    files = [tmp_path / "two.jsonl", tmp_path / "windows.txt"]
    run("corpus", "build", *files, "--tokenizer", tokenizer, "-o", tmp_path / "corpus.fri")
    assert len(Corpus(tmp_path / "corpus.fri")) == 4 + 2 + 7


def text_of(corpus: Path) -> str:
    return "".join("|" if token == 0 else WORDS[token - 1] for token in Corpus(corpus).text)


def test_a_folder_is_read_in_order_without_hidden_files(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name, text in {
        "b.txt": "b",
        "a/z.txt": "a",
        "a/deep/lines.jsonl": '{"text": "dd"}',
        "c.txt": "c",
        "a/empty.txt": "",
        ".hidden": "h",
        ".git/config": "g",
        "CVS/Root": "e",
        "a/.svn/entries": "f",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    output = tmp_path / "corpus.fri"
    shown = run("corpus", "build", folder, "--tokenizer", tokenizer, "-o", output)
    assert text_of(output) == "dd|a|b|c|"
    assert "4 files" in shown


def test_binary_files_are_skipped_with_a_message(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.txt").write_text("abc")
    (folder / "nul.bin").write_bytes(b"ab\0cd")
    (folder / "latin.txt").write_bytes(b"ab\xff")
    output = tmp_path / "corpus.fri"
    shown = run("corpus", "build", folder, "--tokenizer", tokenizer, "-o", output)
    assert text_of(output) == "abc|"
    assert "skipped 2 files" in shown
    assert "nul.bin" in shown
    assert "latin.txt" in shown
    (folder / "text.txt").unlink()
    output.unlink()
    for given in (folder, folder / "nul.bin"):
        shown = run("corpus", "build", given, "--tokenizer", tokenizer, "-o", output, code=1)
        assert "nul.bin" in shown
        assert not output.exists()


@pytest.mark.parametrize(("name", "text"), [("a.txt", ""), ("a.jsonl", "\n"), ("a.jsonl", '{"text": ""}')])
def test_an_empty_file_is_an_error(tokenizer: Path, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "full.txt").write_text("abc")
    (tmp_path / name).write_text(text)
    output = tmp_path / "corpus.fri"
    files = (tmp_path / "full.txt", tmp_path / name)
    shown = run("corpus", "build", *files, "--tokenizer", tokenizer, "-o", output, code=1)
    assert str(tmp_path / name) in shown
    assert not output.exists()


def test_an_empty_folder_is_an_error(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    output = tmp_path / "corpus.fri"
    shown = run("corpus", "build", tmp_path / "texts", "--tokenizer", tokenizer, "-o", output, code=1)
    assert str(tmp_path / "texts") in shown


def test_unreadable_input_is_reported(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"words": 1}\n')
    output = tmp_path / "corpus.fri"
    shown = run("corpus", "build", tmp_path / "bad.jsonl", "--tokenizer", tokenizer, "-o", output, code=1)
    assert "line 1" in shown
    shown = run("corpus", "build", tmp_path / "nowhere", "--tokenizer", tokenizer, "-o", output, code=1)
    assert "cannot read" in shown
    (tmp_path / "empty.txt").write_text("")
    shown = run("corpus", "build", tmp_path / "empty.txt", "--tokenizer", tokenizer, "-o", output, code=1)
    assert "is empty" in shown
    shown = run("corpus", "build", tmp_path / "empty.txt", "--tokenizer", tmp_path, "-o", output, code=1)
    assert "cannot load a tokenizer" in shown
    shown = run(
        "corpus", "build", tmp_path / "empty.txt", "--tokenizer", tokenizer, "-o", output / "c", code=1
    )
    assert "cannot write" in shown
    assert "not a corpus" in run("corpus", "show", tmp_path / "bad.jsonl", code=1)
    assert not output.exists()


@pytest.mark.e2e
def test_a_corpus_of_earlier_outputs_raises_tokens_per_step(smollm2: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    output = tmp_path / "corpus.fri"
    run("corpus", "build", tmp_path / "answers.jsonl", "--tokenizer", smollm2, "-o", output)
    with pytest.raises(VocabularyMismatch):
        Corpus(output, vocabulary="of another model")
    alone = json.loads(run("replay", SAMPLE, "--json"))["geometric_mean"]
    helped = json.loads(run("replay", SAMPLE, "--corpus", output, "--json"))["geometric_mean"]
    assert helped > 2 * alone, "every answer is in the corpus"
