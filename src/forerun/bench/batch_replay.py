"""Replay of recorded outputs in batches, with draft lengths planned in the same step or one step ahead.

Both replays use the engines' own parts. The one step ahead schedules a step while the step before is in
flight, as vLLM's asynchronous scheduling does: the scheduler plans draft lengths, and a worker with drafters
of its own looks up the drafts. The recordings determine which draft tokens are accepted. Steps of a request
that has ended in the meantime are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.bench.replay import MIN_OUTPUT_TOKENS, linear_cost
from forerun.bench.transcripts import Transcript
from forerun.drafters.tree_merge import verdict_for
from forerun.engines.chain_drafter import ChainDrafter, pad_chain
from forerun.engines.guarded_drafter import DrafterTotals, DraftFormat
from forerun.engines.lookahead_planner import LookaheadPlanner, LookaheadStep
from forerun.engines.speculative_step import DraftRequest
from forerun.engines.speculator import Speculator
from forerun.types import Draft, Drafter, IntArray, RequestView

VOCAB_SIZE = 1 << 31
"""Recordings have token ids of any vocabulary."""

MakeDrafters = Callable[[], Mapping[str, Drafter]]


@dataclass(slots=True)
class BatchStats:
    """Totals over the steps of requests.

    `num_idle_steps` counts steps of the batch without draft rows, `num_mismatches` outputs that show another
    draft than the scheduler's shadow draft. `seconds` are in units of a one-row step.
    """

    num_tokens: int = 0
    num_request_steps: int = 0
    num_rows: int = 0
    num_unfilled: int = 0
    num_steps: int = 0
    num_idle_steps: int = 0
    num_mismatches: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request emits per step."""
        return self.num_tokens / self.num_request_steps

    @property
    def rows_per_step(self) -> float:
        """Draft rows that a request has per step."""
        return self.num_rows / self.num_request_steps

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds

    @property
    def unfilled_share(self) -> float:
        """The share of the draft rows that no drafter filled."""
        return self.num_unfilled / max(self.num_rows, 1)

    @property
    def idle_share(self) -> float:
        """The share of the steps of the batch without draft rows."""
        return self.num_idle_steps / self.num_steps

    def add_request(self, num_tokens: int, num_rows: int, num_filled: int) -> None:
        """Count the step of one request."""
        self.num_request_steps += 1
        self.num_tokens += num_tokens
        self.num_rows += num_rows
        self.num_unfilled += num_rows - num_filled

    def add_step(self, num_rows: int, seconds: float) -> None:
        """Count a step of the batch."""
        self.num_steps += 1
        self.num_idle_steps += num_rows == 0
        self.seconds += seconds


@dataclass(slots=True, eq=False)
class _Replayed:
    """A request of the batch: `known` of its tokens are known to the scheduler, then come those of `output`,
    which the step in flight emits with `num_rows` draft rows.
    """

    name: str
    tokens: IntArray
    num_prompt: int
    known: int
    output: IntArray
    num_rows: int = 0

    def view(self, *, arrived: bool = False) -> RequestView:
        """The request's known tokens; with `arrived`, also those that the step in flight emits."""
        known = self.known + (len(self.output) if arrived else 0)
        return RequestView(self.name, self.tokens[:known], num_prompt=self.num_prompt)


@dataclass(slots=True)
class BatchReplay:
    """Replays recordings, `concurrency` at a time, with chains of at most `max_draft` tokens.

    `make_drafters` makes the drafters of one process. With a `price`, a share of a one-row step, the
    controller plans the draft lengths; without one, every draft token is verified.
    """

    make_drafters: MakeDrafters
    max_draft: int
    price: float | None = None
    concurrency: int = 1
    stats: BatchStats = field(default_factory=BatchStats)

    def run_sync(self, transcripts: Sequence[Transcript]) -> BatchStats:
        """Replay with drafts looked up and draft lengths chosen in the same step."""
        self.stats = BatchStats()
        speculator = self._speculator(self.make_drafters())
        waiting, running = self._requests(transcripts), list[_Replayed]()
        while self._admit(running, waiting):
            for each in running:
                each.known += len(each.output)
            requests = [DraftRequest(each.view(), self.max_draft) for each in running]
            step = speculator.draft(requests, rows=len(running))
            speculator.choose(step)
            for each, draft in zip(running, step.drafts, strict=True):
                self._verify(each, draft, len(draft))
                speculator.observe(step, each.name, verdict_for(draft, each.output))
            lookup_seconds = step.control.lookup_seconds
            seconds = self._end_step(len(running), sum(map(len, step.drafts)))
            speculator.close(step, seconds + lookup_seconds)
            for each in [each for each in running if each.known + len(each.output) == len(each.tokens)]:
                running.remove(each)
                speculator.forget(each.name, each.view(arrived=True))
        return self.stats

    def run_ahead(self, transcripts: Sequence[Transcript]) -> BatchStats:
        """Replay with draft lengths planned while the step before is in flight."""
        self.stats = BatchStats()
        chains, worker = self._chains(), self._chains()
        planner = LookaheadPlanner(self._speculator(chains.drafters), chains)
        waiting, running = self._requests(transcripts), list[_Replayed]()
        previous: LookaheadStep | None = None
        seconds = 0.0
        while self._admit(running, waiting):
            requests = [DraftRequest(each.view(), self.max_draft) for each in running]
            step = planner.plan(requests, [each.num_rows for each in running], rows=len(running))
            lengths = dict(zip([each.name for each in running], step.lengths, strict=True))
            self._receive(planner, running, previous, seconds)
            finished = [each for each in running if each.known == len(each.tokens)]
            for each in finished:
                running.remove(each)
                planner.forget(each.name, each.view())
            num_rows = self._run_worker(worker, running, lengths)
            for each in finished:
                worker.forget(each.name, each.view())
            previous = step
            seconds = self._end_step(len(running), num_rows)
        self.stats.num_mismatches = planner.num_mismatches
        return self.stats

    def _receive(
        self,
        planner: LookaheadPlanner,
        running: Sequence[_Replayed],
        step: LookaheadStep | None,
        seconds: float,
    ) -> None:
        """The outputs of the step in flight arrive at the scheduler."""
        for each in running:
            if step is not None:
                planner.observe(step, each.view(), each.output)
            each.known += len(each.output)
        if step is not None:
            planner.close(step, seconds)

    def _run_worker(
        self, worker: ChainDrafter, running: Sequence[_Replayed], lengths: Mapping[str, int]
    ) -> int:
        """Look up and verify drafts of the planned lengths; returns the number of draft rows."""
        budgets = [lengths[each.name] for each in running]
        drafts = worker.propose([each.view() for each in running], budgets, [None] * len(running))
        for each, draft, length in zip(running, drafts, budgets, strict=True):
            each.num_rows = length
            padded = pad_chain(draft, length, int(each.tokens[each.known - 1]))
            self._verify(each, padded, len(draft))
        return sum(budgets)

    def _verify(self, request: _Replayed, draft: Draft, num_filled: int) -> None:
        """Set the output of a request's step, and count it."""
        ahead = request.tokens[request.known :]
        num_tokens = len(verdict_for(draft, ahead).accepted) + 1
        request.output = ahead[:num_tokens]
        self.stats.add_request(num_tokens, len(draft), num_filled)

    def _end_step(self, num_requests: int, num_rows: int) -> float:
        """Count a step of the batch; returns its seconds."""
        seconds = 1.0 + (self.price or 0.0) * (num_requests + num_rows - 1)
        if num_requests:
            self.stats.add_step(num_rows, seconds)
        return seconds

    def _requests(self, transcripts: Sequence[Transcript]) -> Iterator[_Replayed]:
        """The requests of the recordings, whose first token is in flight."""
        for number, each in enumerate(transcripts):
            if len(each.output) >= MIN_OUTPUT_TOKENS:
                num_prompt = len(each.prompt)
                yield _Replayed(f"replay-{number}", each.tokens, num_prompt, num_prompt, each.output[:1])

    def _admit(self, running: list[_Replayed], waiting: Iterator[_Replayed]) -> bool:
        """Fill the batch with waiting requests; returns whether it has any request."""
        while len(running) < self.concurrency and (request := next(waiting, None)) is not None:
            running.append(request)
        return bool(running)

    def _speculator(self, drafters: Mapping[str, Drafter]) -> Speculator:
        return Speculator(
            drafters,
            linear_cost(self.price or 0.0),
            DraftFormat(VOCAB_SIZE, trees=False, q=False),
            adaptive=self.price is not None,
            counters=DrafterTotals(),
        )

    def _chains(self) -> ChainDrafter:
        return ChainDrafter(
            self.make_drafters(), VOCAB_SIZE, max_draft=self.max_draft, counters=DrafterTotals()
        )
