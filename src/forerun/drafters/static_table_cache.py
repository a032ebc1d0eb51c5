"""Static tables on disk, found by the content of their model's files."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from forerun.drafters.static_table import StaticTable

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.gguf", "*.pt")

_NUM_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096
"""Parts of every weight file that are read: fine-tuned models differ in all of them."""


def load_static_table(model: str | Path) -> StaticTable | None:
    """The complete static table of a model in a directory or in the hub's cache; None if there is none."""
    file = table_path(model)
    if file is None or not file.exists():
        return None
    table = StaticTable.load(file)
    return None if len(table.missing) else table


def table_path(model: str | Path) -> Path | None:
    """The file of a model's static table, whether or not it exists; None if the model is not on disk."""
    directory = _directory(str(model))
    if directory is None:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "forerun" / "static-tables" / f"{_fingerprint(directory)}.npz"


def num_weight_bytes(directory: Path) -> int:
    """The size of a model's weights on disk, in the first format that it has; 0 if there are none."""
    sizes = (sum(file.stat().st_size for file in directory.glob(pattern)) for pattern in _WEIGHTS)
    return next(filter(None, sizes), 0)


def partial_path(file: Path) -> Path:
    """The file of a table that is still being built."""
    return file.with_suffix(".partial.npz")


def _directory(model: str) -> Path | None:
    """The directory of a model's files."""
    if Path(model).is_dir():
        return Path(model)
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 (comes with transformers and vLLM)

    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # not a valid repository name
        return None
    return Path(found).parent if isinstance(found, str) else None


def _fingerprint(directory: Path) -> str:
    """A digest of the configuration and of parts of the weights."""
    digest = hashlib.sha256()
    for file in sorted(each for pattern in ("config.json", *_WEIGHTS) for each in directory.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for sample in range(_NUM_SAMPLES):
                opened.seek(max(size - _SAMPLE_BYTES, 0) * sample // (_NUM_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]
