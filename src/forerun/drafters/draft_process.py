"""A draft model in a process of its own, which drafts ahead while the target verifies.

The process has its own threads and its own memory. If it ends, or does not answer in time, the requests
decode without drafts until a new one is ready; the output does not depend on it.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from forerun.drafters.draft_model import NAME
from forerun.drafters.draft_worker import (
    ForgetMessage,
    ProposeMessage,
    ProposeReply,
    ViewUpdate,
    WorkerSettings,
    receive,
    send,
)
from forerun.drafters.run_ahead import RunAheadStats
from forerun.errors import ConfigurationError
from forerun.models.model_call import ModelCall
from forerun.types import Draft, RequestView, Verdict

START_TIMEOUT: Final = 300.0
"""Seconds for the first process to load its model."""

MIN_RESTART_INTERVAL: Final = 1.0
MAX_RESTART_INTERVAL: Final = 60.0
"""Seconds between two starts; the interval doubles while processes end soon after their start."""

_PROGRAM: Final = "import sys; from forerun.drafters.draft_worker import main; main(int(sys.argv[1]))"
_EMPTY_DRAFT: Final = Draft.chain([])
_logger: Final = logging.getLogger(__name__)


class DraftProcess:
    """A drafter whose draft model runs in another process.

    The constructor waits until the model is loaded. A process that takes longer than `timeout` seconds for a
    proposal is replaced.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        timeout: float = 60.0,
        max_restart_interval: float = MAX_RESTART_INTERVAL,
    ) -> None:
        self.settings = settings
        self.timeout = timeout
        self.max_restart_interval = max_restart_interval
        self.stats = RunAheadStats()
        self.num_restarts = 0
        self.calls: list[ModelCall] | None = None
        self._restart_interval = MIN_RESTART_INTERVAL
        self._num_sent: dict[str, int] = {}
        self._start()
        if not self._connection.poll(START_TIMEOUT) or not self._receive_ready():
            self.close()
            raise ConfigurationError("the process of the draft model ended before its model was loaded")

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view; empty ones while no process is ready."""
        if not self._is_ready and not self._restarted():
            return [_EMPTY_DRAFT] * len(views)
        try:
            send(self._connection, ProposeMessage([self._update(view) for view in views], list(budgets)))
            if not self._connection.poll(self.timeout):
                raise TimeoutError(f"no draft within {self.timeout:g} seconds")
            reply: ProposeReply = receive(self._connection)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            _logger.warning("the process of the draft model is replaced: %s", error or type(error).__name__)
            self._stop()
            return [_EMPTY_DRAFT] * len(views)
        self.stats = reply.stats
        if self.calls is not None:
            self.calls += reply.calls
        return [chain.draft(NAME) for chain in reply.chains]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Does nothing: the next proposal has the committed tokens."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Free the request's slot in the other process."""
        if self._num_sent.pop(id, None) is not None and self._is_ready:
            try:
                send(self._connection, ForgetMessage(id))
            except OSError:
                self._stop()

    def close(self) -> None:
        """End the process."""
        self._stop()

    def _update(self, view: RequestView) -> ViewUpdate:
        start = self._num_sent.get(view.id, 0)
        self._num_sent[view.id] = len(view.tokens)
        return ViewUpdate.of(view, start)

    def _start(self) -> None:
        """Start a process, and send it its settings; it answers once its model is loaded."""
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _PROGRAM, str(other.fileno())],
                pass_fds=[other.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": str(self.settings.threads)},
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(own.detach())
        self._finalizer = weakref.finalize(self, _end, self._process, self._connection)
        self._is_ready = False
        self._num_sent.clear()
        self._started_at = time.monotonic()
        send(self._connection, self.settings)

    def _receive_ready(self) -> bool:
        try:
            self._is_ready = receive(self._connection) == "ready"
        except (EOFError, OSError):
            return False
        return self._is_ready

    def _restarted(self) -> bool:
        """Whether a new process is ready; starts one if there is none and the last start is long ago."""
        if self._finalizer.alive:
            if not self._connection.poll(0):
                return False
            if self._receive_ready():
                return True
            self._stop()
        if time.monotonic() - self._started_at >= self._restart_interval:
            self.num_restarts += 1
            self._restart_interval = min(2 * self._restart_interval, self.max_restart_interval)
            self._start()
        return False

    def _stop(self) -> None:
        """End the process, so that the next proposal starts another one."""
        if time.monotonic() - self._started_at > self.max_restart_interval:
            self._restart_interval = MIN_RESTART_INTERVAL
        self._is_ready = False
        self._finalizer()


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    """Kill a process and wait for its end."""
    connection.close()
    process.kill()
    process.wait()
