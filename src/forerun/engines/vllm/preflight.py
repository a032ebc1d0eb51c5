"""Checks that run before vLLM starts, which takes most of a minute to fail for the same reasons.

Each failure is one line that names the value given and the remedy.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forerun.config import SpeculationConfig
from forerun.drafters.corpus import Corpus
from forerun.engines.vllm.draft_vocabulary import check_draft_vocabulary
from forerun.engines.vllm.flags import flag_value, split_equals
from forerun.engines.vllm.hub_cache import cached_file
from forerun.engines.vllm.speculative_config import given_speculative_config
from forerun.errors import ConfigurationError, InvalidCorpus, UnreadableModel

DEFAULT_PORT: Final = 8000

_CONFIGS: Final = ("config.json", "params.json")
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_YES: Final = frozenset({"1", "on", "yes", "true"})


def check_launch(model: str, config: SpeculationConfig, given: Sequence[str]) -> None:
    """Raise a `ForerunError` if the model, the draft model, a corpus or the port cannot be used."""
    _check_model("model", model, given)
    speculator = given_speculative_config(model, given) or {}
    draft_model = speculator.get("model") if speculator else config.draft_model
    if draft_model is not None:
        _check_model("draft model", draft_model, ())
        if speculator.get("method", "draft_model") == "draft_model":
            _check_vocabulary(flag_value(given, "--tokenizer") or model, draft_model)
    for file in config.corpora:
        _check_corpus(file)
    _check_port(given)


def _check_model(role: str, name: str, given: Sequence[str]) -> None:
    if "://" in name or Path(name).is_file():
        return
    if Path(name).is_dir():
        _check_directory(role, Path(name), given)
    elif _looks_like_a_path(name):
        raise UnreadableModel(
            f"the {role} {name} does not exist; give a model directory, or a name on the hub"
        )
    elif _is_offline() and not _is_cached(name, given):
        raise UnreadableModel(
            f"the {role} {name} is neither a directory nor in the Hugging Face cache, and HF_HUB_OFFLINE"
            " forbids downloads; give a model directory, or unset HF_HUB_OFFLINE"
        )


def _check_directory(role: str, folder: Path, given: Sequence[str]) -> None:
    flags = split_equals(given)
    has_config = any((folder / name).is_file() for name in _CONFIGS) or any(folder.glob("*.gguf"))
    if not has_config and "--hf-config-path" not in flags:
        raise UnreadableModel(
            f"the {role} directory {folder} has no config.json; give the one that has it and the weights"
        )
    if "--load-format" not in flags and not any(True for kind in _WEIGHTS for _ in folder.glob(kind)):
        raise UnreadableModel(
            f"the {role} directory {folder} has no weights (*.safetensors, *.bin); download the model again"
        )


def _check_vocabulary(target: str, draft: str) -> None:
    """Compare the tokens of two directories; those of other models are compared once vLLM has loaded them."""
    if all((Path(folder) / "tokenizer.json").is_file() for folder in (target, draft)):
        check_draft_vocabulary(target, draft)


def _looks_like_a_path(name: str) -> bool:
    """Whether a name can only be a path: hub names have at most one slash, and start with an identifier."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/")


def _is_offline() -> bool:
    wanted = (os.environ.get(name, "").lower() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    uses_hub = os.environ.get("VLLM_USE_MODELSCOPE", "").lower() not in _YES
    return uses_hub and any(value in _YES for value in wanted)


def _is_cached(name: str, given: Sequence[str]) -> bool:
    """Whether the hub's cache has the configuration file of a model."""
    return ":" in name or any(cached_file(name, file, given) for file in _CONFIGS)


def _check_corpus(file: Path) -> None:
    if not file.is_file():
        raise InvalidCorpus(f"the corpus {file} does not exist; write it with `forerun corpus build`")
    Corpus(file)


def _check_port(given: Sequence[str]) -> None:
    """Bind the address as vLLM will, and release it."""
    flags = split_equals(given)
    port = flag_value(given, "--port") or ("" if "--config" in flags else str(DEFAULT_PORT))
    if not port.isdecimal() or "--uds" in flags or "--headless" in flags:
        return
    host = flag_value(given, "--host") or ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ConfigurationError(
                f"cannot listen on {host or 'all addresses'}, port {port}: {reason.lower()};"
                " give another --port or --host, or stop the server that uses it"
            ) from error
