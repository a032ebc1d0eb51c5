"""Records the likeliest next tokens at the rows of a step, in the worker, for drafters that recycle logits.

Only in steps for which the scheduler asks. Every other step runs as if there were no recorder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from forerun.core.top_tokens import top_tokens, top_tokens_on_device, warm_up
from forerun.drafters.successors import NUM_SUCCESSORS
from forerun.engines.vllm.step_report import TopTokenReport


class LogitsRecorder:
    """Records one step at a time.

    On a device the tokens are copied to the host on `copy_stream`, without waiting: they are there once an
    event that is recorded on this stream afterwards has passed. Without a stream the host waits.
    """

    def __init__(self, copy_stream: Any = None) -> None:
        self.copy_stream = copy_stream
        self.wanted: frozenset[str] = frozenset()
        self._report: TopTokenReport | None = None
        warm_up()

    def begin(self, wanted: frozenset[str]) -> None:
        """Begin a step in which the rows of these requests are recorded."""
        self.wanted = wanted
        self._report = None

    def record(self, logits: torch.Tensor, names: Sequence[str], num_rows: Sequence[int]) -> None:
        """Record logits, which have `num_rows[i]` rows for request `names[i]`; they are not changed.

        With a stream, the report has the rows of all requests, because selecting some would take a copy to
        the device.
        """
        ends = [*accumulate(num_rows)]
        if not self.wanted.intersection(names) or ends[-1] != len(logits):
            return
        if self.copy_stream is not None and logits.device.type != "cpu":
            self._report = TopTokenReport(tuple(names), tuple(ends), *self._copy_all(logits))
            return
        chosen = [at for at, name in enumerate(names) if name in self.wanted]
        rows = np.concatenate([np.arange(ends[at] - num_rows[at], ends[at]) for at in chosen])
        own_names, own_ends = [names[at] for at in chosen], accumulate(num_rows[at] for at in chosen)
        found = top_tokens(logits, NUM_SUCCESSORS, rows)
        self._report = TopTokenReport(tuple(own_names), tuple(own_ends), *found)

    def take(self) -> TopTokenReport | None:
        """The report on this step, once."""
        report, self._report = self._report, None
        return report

    @contextmanager
    def recording(self, model: Any, names: Sequence[str], num_rows: Sequence[int]) -> Iterator[None]:
        """Within this block, the logits that the model computes are recorded."""
        compute = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            if logits is not None:
                self.record(logits, names, num_rows)
            return logits

        model.compute_logits = compute_logits
        try:
            yield
        finally:
            model.compute_logits = compute

    def _copy_all(self, logits: torch.Tensor) -> tuple[Any, Any]:
        """The likeliest tokens of all rows and their probabilities, as arrays that the stream still fills."""
        found = top_tokens_on_device(logits, min(NUM_SUCCESSORS, logits.shape[-1]))
        computed: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record()
        computed.wait(self.copy_stream)
        with torch.cuda.stream(self.copy_stream):
            tokens, probs = (each.to("cpu", non_blocking=True).numpy() for each in found)
        for each in found:
            each.record_stream(self.copy_stream)
        return tokens, probs
