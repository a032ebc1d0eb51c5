"""Compares the tokens of a draft model with those of its target; vLLM compares only their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.drafters.documents import load_tokenizer
from forerun.errors import ConfigurationError, MissingExtra


def check_draft_vocabulary(target: str, draft: str) -> bool:
    """Raise `VocabularyMismatch` if the tokenizers of two models differ in any token.

    Rows of the embedding beyond the tokenizer's tokens may differ. Returns False if one of the models has no
    readable tokenizer, so that only vLLM's comparison of sizes remains.
    """
    if target == draft:
        return True
    if _lacks_tokenizer(target) or _lacks_tokenizer(draft):
        return False
    try:
        tokenizers = load_tokenizer(target), load_tokenizer(draft)
    except (ConfigurationError, MissingExtra):
        return False
    from forerun.models.tokenization import check_same_vocabulary  # noqa: PLC0415 (imports torch)

    check_same_vocabulary(*tokenizers)
    return True


def _lacks_tokenizer(model: str) -> bool:
    """Whether a model is a directory without a tokenizer; a name is looked up on the hub."""
    return Path(model).is_dir() and not (Path(model) / "tokenizer.json").is_file()


def check_draft_model(vllm_config: Any) -> str | None:
    """Compare the vocabularies of a vLLM with a draft model; returns a warning if they cannot be compared.

    Other speculators share the target's vocabulary, or map theirs to it.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or not speculative.uses_draft_model():
        return None
    target, draft = vllm_config.model_config.tokenizer, speculative.model
    if check_draft_vocabulary(target, draft):
        return None
    return (
        f"the tokens of the draft model {draft} cannot be compared with those of {target}: one of them has no"
        " tokenizer.json; only the sizes of the vocabularies were compared"
    )
