"""The command that installs an extra fits the way in which forerun was installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from forerun import installation
from forerun.errors import MissingExtra


@pytest.fixture
def installed_from(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the origin that pip recorded for forerun; None is an installation from an index."""

    class Distribution:
        def __init__(self, origin: dict[str, Any] | None) -> None:
            self.origin = origin

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if self.origin is None else json.dumps(self.origin)

    def set_origin(origin: dict[str, Any] | None) -> None:
        monkeypatch.setattr(installation, "distribution", lambda _: Distribution(origin))

    return set_origin


def arguments_of(error: MissingExtra) -> list[str]:
    """The arguments of `pip install`, as a shell parses them."""
    return shlex.split(str(error).partition("pip install ")[2].partition(";")[0])


def test_an_extra_of_an_editable_clone_is_installed_from_the_clone(installed_from: Any) -> None:
    installed_from({"url": "file:///src/my%20clone", "dir_info": {"editable": True}})
    assert arguments_of(MissingExtra("matplotlib", "plots")) == ["-e", "/src/my clone[plots]"]


def test_an_extra_of_a_copied_clone_is_not_installed_editable(installed_from: Any) -> None:
    installed_from({"url": "file:///src/forerun", "dir_info": {}})
    assert arguments_of(MissingExtra("matplotlib", "plots")) == ["/src/forerun[plots]"]


def test_an_extra_of_a_wheel_or_a_repository_names_its_url(installed_from: Any) -> None:
    installed_from({"url": "file:///dist/forerun-1-py3-none-any.whl", "archive_info": {}})
    (wheel,) = map(Requirement, arguments_of(MissingExtra("matplotlib", "plots")))
    assert (wheel.url, wheel.extras) == ("file:///dist/forerun-1-py3-none-any.whl", {"plots"})
    installed_from({"url": "https://host/f.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    (repository,) = map(Requirement, arguments_of(MissingExtra("matplotlib", "plots")))
    assert repository.url == "git+https://host/f.git@abc"


def test_an_extra_of_an_index_installation_comes_from_the_index(installed_from: Any) -> None:
    installed_from(None)
    assert arguments_of(MissingExtra("matplotlib", "plots")) == ["forerun[plots]"]


def test_the_vllm_extra_names_the_recipe_for_machines_without_a_gpu(
    installed_from: Any, tmp_path: Path
) -> None:
    (tmp_path / "Makefile").touch()
    installed_from({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    error = str(MissingExtra("vLLM", "vllm"))
    assert f"make -C {tmp_path} setup" in error
    assert "CUDA" in error
    installed_from(None)
    assert "make setup" in str(MissingExtra("vLLM", "vllm"))
    assert "make" not in str(MissingExtra("matplotlib", "plots"))
