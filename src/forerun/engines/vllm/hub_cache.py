"""Files of models in the Hugging Face cache."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from forerun.engines.vllm.flags import flag_value


def cached_file(name: str, file: str, given: Sequence[str]) -> str | None:
    """The path of a model's file in the hub's cache, or None; the flags name its directory and revision."""
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 (comes with vLLM)

    cache, revision = flag_value(given, "--download-dir"), flag_value(given, "--revision")
    repository = name.partition(":")[0]  # the suffix selects a GGUF file
    try:
        found = try_to_load_from_cache(repository, file, cache_dir=cache, revision=revision)
    except ValueError:  # not a valid repository name
        return None
    return found if isinstance(found, str) else None
