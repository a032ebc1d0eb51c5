"""The process of a draft model that runs ahead: answers proposals, and prepares the next ones in between.

`draft_process` starts it with the file descriptor of a socket. Messages are pickled; both
ends belong to one user and one version. The first message has a function that makes the drafter.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from forerun.core.tensors import torch
from forerun.drafters.run_ahead import RunAheadModel, RunAheadStats
from forerun.models.model_call import ModelCall
from forerun.types import Draft, Float32Array, IntArray, Proposal, RequestView, SamplingParams


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How to make the drafter; its threads, and the CPUs on which it may run, by default all."""

    make: Callable[[], RunAheadModel]
    threads: int
    cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ViewUpdate:
    """A request's tokens from position `start` on, as those before are known, and its sampling settings."""

    id: str
    start: int
    tokens: tuple[int, ...]
    num_prompt: int | None
    sampling: Mapping[str, Any]

    @classmethod
    def of(cls, view: RequestView, start: int) -> ViewUpdate:
        """The update of a view whose first `start` tokens are known."""
        values = {each.name: getattr(view.sampling, each.name) for each in fields(view.sampling)}
        plain = {name: dict(each) if isinstance(each, Mapping) else each for name, each in values.items()}
        tokens = tuple(int(token) for token in view.tokens[start:])
        return cls(view.id, start, tokens, view.num_prompt, plain)


@dataclass(frozen=True, slots=True)
class ProposeMessage:
    """A call of `propose`."""

    updates: Sequence[ViewUpdate]
    budgets: Sequence[int]


@dataclass(frozen=True, slots=True)
class ForgetMessage:
    """A call of `forget`."""

    id: str


@dataclass(frozen=True, slots=True)
class PackedChain:
    """A draft chain as arrays; `q` has a row for each sampled token, or none."""

    tokens: IntArray
    q: Float32Array | None
    survival: Float32Array | None

    @classmethod
    def of(cls, draft: Draft) -> PackedChain:
        """Pack a chain."""
        proposals = draft.proposals_of_nodes()
        q = [
            torch.as_tensor(proposals[node].probs).numpy(force=True)
            for node in range(len(draft))
            if proposals
        ]
        return cls(draft.tokens, np.stack(q) if q else None, draft.survival)

    def draft(self, source: str) -> Draft:
        """The chain as a draft."""
        q = [] if self.q is None else [Proposal(row) for row in torch.from_numpy(self.q)]
        return Draft.chain(self.tokens, q=q, source=source, survival=self.survival)


@dataclass(frozen=True, slots=True)
class ProposeReply:
    """The chains of a proposal, the counts so far, and the forward passes since the last reply."""

    chains: Sequence[PackedChain]
    stats: RunAheadStats
    calls: Sequence[ModelCall]


class DraftWorker:
    """Serves one connection until it is closed."""

    def __init__(self, connection: Connection, drafter: RunAheadModel) -> None:
        self._connection, self._drafter = connection, drafter
        self._texts: dict[str, list[int]] = {}

    def serve(self) -> None:
        """Answer messages; between two of them, prepare drafts, one forward pass at a time."""
        preparing: Iterator[None] = iter(())
        while True:
            is_idle = False
            while not is_idle and not self._connection.poll(0):
                is_idle = next(preparing, self) is self
            try:
                message = receive(self._connection)
            except (EOFError, ConnectionResetError):
                return
            if isinstance(message, ForgetMessage):
                self._texts.pop(message.id, None)
                self._drafter.forget(message.id)
            else:
                send(self._connection, self._propose(message))
                preparing = self._drafter.prepare()

    def _propose(self, message: ProposeMessage) -> ProposeReply:
        views = [self._view(update) for update in message.updates]
        drafts = self._drafter.propose(views, message.budgets)
        calls, self._drafter.runner.calls = self._drafter.runner.calls or [], []
        return ProposeReply([PackedChain.of(draft) for draft in drafts], self._drafter.stats, calls)

    def _view(self, update: ViewUpdate) -> RequestView:
        text = self._texts.setdefault(update.id, [])
        text[update.start :] = update.tokens
        sampling = SamplingParams(**update.sampling)
        return RequestView(update.id, text, num_prompt=update.num_prompt, sampling=sampling)


def send(connection: Connection, message: Any) -> None:
    """Send a message."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Receive a message; `EOFError` if the other end is closed."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301  (from the process that started this one)


def main(descriptor: int) -> None:
    """Serve the socket with this descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's process handles it, and closes the connection
    connection = Connection(descriptor)
    settings: WorkerSettings = receive(connection)
    if settings.cpus is not None:
        os.sched_setaffinity(0, settings.cpus)
    torch.set_num_threads(settings.threads)
    worker = DraftWorker(connection, settings.make())
    send(connection, "ready")
    worker.serve()
