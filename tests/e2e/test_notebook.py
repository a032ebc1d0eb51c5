"""The notebook runs from top to bottom, and its stored outputs say what a run says."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from socket import socket
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "serving" / "serve_measure_audit.ipynb"

pytestmark = pytest.mark.e2e


def printed(notebook: Any) -> list[str]:
    """The printed text of every code cell."""
    return [
        "".join(each.get("text", "") for each in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def free_port() -> int:
    with closing(socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def check(texts: list[str]) -> None:
    text = "\n".join(texts)
    assert len(re.findall(r"[\d.]+x +\d+  True$", text, flags=re.MULTILINE)) == 3
    assert re.search(r"^True\n\d+ predicted tokens accepted$", text, flags=re.MULTILINE)
    assert "exit code 0" in text
    assert "/root" not in text
    assert "/home" not in text


def test_the_notebook_runs_and_its_stored_outputs_hold(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    check(printed(stored))
    assert any(
        "image/png" in each.get("data", {}) for cell in stored.cells for each in cell.get("outputs", ())
    )
    environment = {"MODEL": smollm2, "PORT": free_port(), "REPEATS": 1, "VLLM_CPU_KVCACHE_SPACE": 1}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    client = nbclient.NotebookClient(stored, timeout=900)
    check(printed(client.execute()))
