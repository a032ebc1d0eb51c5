"""How forerun was installed, and the command that adds an extra to that installation."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """The command that installs an extra from wherever this forerun came from: directory, archive or index.

    The extra `vllm` brings CUDA builds, so its command is followed by the one for a machine without a GPU.
    """
    origin = _origin()
    if "dir_info" in origin:
        editable = ["-e"] if origin["dir_info"].get("editable") else []
        command = _pip([*editable, f"{_folder(origin)}[{extra}]"])
    else:
        command = _pip([_requirement(extra, origin)])
    if extra != "vllm":
        return command
    return f"{command}; without a GPU, where that would install CUDA builds: {_cpu_recipe(origin)}"


def _pip(arguments: list[str]) -> str:
    return shlex.join(["pip", "install", *arguments])


def _cpu_recipe(origin: dict[str, Any]) -> str:
    """How to get vLLM's CPU build: by the Makefile of the clone, if forerun was installed from one."""
    if "dir_info" in origin and (_folder(origin) / "Makefile").is_file():
        return shlex.join(["make", "-C", str(_folder(origin)), "setup"])
    return "make setup, in a clone of forerun"


def _folder(origin: dict[str, Any]) -> Path:
    return Path(url2pathname(urlsplit(origin["url"]).path))


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """The extra of the archive or repository that forerun came from; by name if it came from an index."""
    if not origin:
        return f"forerun[{extra}]"
    url, repository = origin["url"], origin.get("vcs_info")
    source = f"{repository['vcs']}+{url}@{repository['commit_id']}" if repository else url
    return f"forerun[{extra}] @ {source}"


def _origin() -> dict[str, Any]:
    """The origin that pip recorded (PEP 610, direct_url.json); empty for an index or another installer."""
    try:
        text = distribution("forerun").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    values: dict[str, Any] = json.loads(text) if text else {}
    return values
