"""Tokens of requests for the drafters in the worker, each sent once."""

from __future__ import annotations

from typing import Any

from forerun.engines.vllm.step_plan import RequestUpdate
from forerun.types import Tokens


class WorkerUpdates:
    """Remembers how many tokens of every request the worker has been sent, and which requests have finished.

    With `share_outputs` the worker gets the tokens of every finished request, otherwise only the names of
    those it knows.
    """

    def __init__(self, *, share_outputs: bool) -> None:
        self.share_outputs = share_outputs
        self._num_sent: dict[str, int] = {}
        self._finished: dict[str, RequestUpdate] = {}

    def update(
        self, request: Any, drafters: tuple[str, ...] | None, prediction: Tokens | None = None
    ) -> RequestUpdate:
        """The tokens of a request that the worker lacks; its prediction is sent with the first of them."""
        name, tokens = request.request_id, request.all_token_ids
        start = self._num_sent.get(name, 0)
        if start > len(tokens):  # a streaming session has replaced its tokens
            start = 0
        self._num_sent[name] = len(tokens)
        return RequestUpdate(
            start,
            tokens[start:],
            request.num_prompt_tokens,
            request.cache_salt,
            drafters,
            None if start else prediction,
        )

    def finish(self, request: Any, drafters: tuple[str, ...] | None) -> None:
        """Send the end of a request with the next plan."""
        name = request.request_id
        if self.share_outputs:
            self._finished[name] = self.update(request, drafters)
        elif name in self._num_sent:
            self._finished[name] = RequestUpdate(self._num_sent[name], ())
        self._num_sent.pop(name, None)

    def take_finished(self) -> dict[str, RequestUpdate]:
        """The requests that finished since the last call."""
        finished, self._finished = self._finished, {}
        return finished
