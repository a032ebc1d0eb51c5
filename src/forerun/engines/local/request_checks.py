"""Checks of a request before it is queued, with the remedy for each fault."""

from __future__ import annotations

from forerun.core.logits_processors import check_token_ids
from forerun.engines.local.request import Request
from forerun.errors import InvalidRequest
from forerun.models.invariant_runner import InvariantRunner
from forerun.models.runner import Runner, max_context_length


def check_request(request: Request, target: Runner, *, has_tokenizer: bool) -> None:
    """Raise `InvalidRequest` if the model cannot serve a request."""
    if len(request.prompt) >= target.max_length:
        raise InvalidRequest(
            f"the prompt has {len(request.prompt)} tokens; prompt and output must fit in"
            f" {target.max_length}: {_length_remedy(target)}"
        )
    for what, tokens in {"prompt": request.prompt, "prediction": request.prediction or ()}.items():
        unknown = [token for token in tokens if not 0 <= token < target.vocab_size]
        if unknown:
            raise InvalidRequest(
                f"the {what} has token {unknown[0]}; the vocabulary has {target.vocab_size} tokens"
            )
    if not has_tokenizer and any(isinstance(stop, str) for stop in request.stop):
        raise InvalidRequest(
            "a stop text needs a tokenizer, and the model has none: stop at token ids, pass tokenizer=,"
            " or add the tokenizer's files to the model's directory"
        )
    if request.invariant and not isinstance(target, InvariantRunner):
        raise InvalidRequest(
            "the request demands invariant mode, and the engine does not run in it: create it with"
            " invariant=True, or leave out the demand"
        )
    check_token_ids(request.sampling, target.vocab_size)


def _length_remedy(target: Runner) -> str:
    """The advice for a prompt that is too long."""
    limit = max_context_length(target.model)
    if target.max_length < limit:
        return f"shorten it, or raise max_length (--max-length), for this model up to {limit}"
    return "shorten it; this is the model's own context length"
