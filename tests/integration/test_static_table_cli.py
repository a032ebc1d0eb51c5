"""`forerun static-table` on a tiny model: the table, resuming, and the background process of a server."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("transformers", reason="needs the extra `local`")

from forerun.cli.main import app
from forerun.drafters.static_table import StaticTable
from forerun.drafters.static_table_cache import load_static_table, partial_path, table_path
from forerun.engines.local.static_table_builder import neutral_context
from forerun.models.loading import load_tokenizer
from integration.test_generate_cli import make_tokenizer

VOCAB = 16


@pytest.fixture
def model(tiny_llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_llama.save_pretrained(tmp_path / "tiny")
    make_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def build(model: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["static-table", str(model), "--device", "cpu", *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_table_has_the_likeliest_tokens_behind_a_neutral_context(model: Path, tiny_llama: Any) -> None:
    assert load_static_table(model) is None
    assert f"{VOCAB} rows computed" in build(model)
    table = load_static_table(model)
    assert table is not None
    context = neutral_context(load_tokenizer(str(model)))
    for token in range(VOCAB):
        with torch.inference_mode():
            logits = tiny_llama(torch.tensor([[*context, token]])).logits[0, -1]
        assert table.successors[token].tolist() == logits.topk(8).indices.tolist()
    assert "0 rows computed" in build(model)


def test_an_interrupted_build_is_continued(model: Path) -> None:
    file = table_path(model)
    assert file is not None
    build(model)
    part = StaticTable.load(file)
    part.successors[5:] = -1
    part.save(partial_path(file))
    file.unlink()
    assert load_static_table(model) is None
    assert f"{VOCAB - 5} rows computed" in build(model)
    assert load_static_table(model) is not None
    assert not partial_path(file).exists()


def test_a_background_build_ends_with_its_parent(model: Path) -> None:
    """Its parent, a server, starts it and is killed before the first pass ends."""
    child = textwrap.dedent(f"""
        import os, time
        from forerun.engines.local import static_table_builder
        build = static_table_builder.build_static_table
        os.sched_setscheduler = lambda *_: None  # other tests may leave no idle time
        parent = os.getppid()
        def wait_for_the_end_of_the_parent(*args, **settings):
            print("building", flush=True)
            while os.getppid() == parent:
                time.sleep(0.01)
            build(*args, **settings)
        static_table_builder.build_static_table = wait_for_the_end_of_the_parent
        from forerun.cli.main import app
        app(["static-table", {str(model)!r}, "--device", "cpu", "--background"])
    """)
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        process.kill()
        assert "rows computed" not in process.stdout.read(), "the child has closed its output"
    assert load_static_table(model) is None


def test_a_background_build_completes_while_its_parent_lives(model: Path) -> None:
    command = [sys.executable, "-m", "forerun", "static-table", str(model), "--device", "cpu", "--background"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    assert "static table 0 %" in done.stderr
    assert "static table done" in done.stderr
    assert load_static_table(model) is not None
