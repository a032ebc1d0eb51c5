"""Draft trees on vLLM's V2 runner: winning paths, scratch blocks and copies, without waiting for the device.

A model of the KV cache compares what every path reads and what a request is left with against its tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

from forerun.engines.vllm.scratch_pool import ScratchPool
from forerun.engines.vllm.v2 import scratch_blocks
from forerun.engines.vllm.v2.path_winner import output_of_winners, rows_of_winners, winning_segments
from forerun.engines.vllm.v2.scratch_blocks import (
    BlockCopier,
    assign_scratch_blocks,
    copies_back,
    copies_in,
    slots_of_rows,
)

pytestmark = pytest.mark.filterwarnings("default")

BLOCK = 4
POOL = ScratchPool(num_cache_blocks=24, block_size=BLOCK, blocks_per_path=3, num_paths=4)
WIDTH = 6


def all_small_outcomes() -> list[tuple[list[int], list[int]]]:
    """Output lengths of two requests' own chains and of up to two side paths, and the owners of these."""
    found = []
    for num_side in range(1, 3):
        for lengths in product((1, 2, 3), repeat=2 + num_side):
            found += [([*lengths], [*owners]) for owners in product((0, 1), repeat=num_side)]
    return found


def reference_winners(lengths: list[int], owners: list[int]) -> list[int]:
    """The first segment of each request with the longest output."""
    segments = [[own, *(2 + at for at, owner in enumerate(owners) if owner == own)] for own in (0, 1)]
    return [max(each, key=lambda segment: (lengths[segment], -segment)) for each in segments]


def test_the_longest_accepted_path_wins_and_the_own_chain_where_it_is_as_long() -> None:
    outcomes = all_small_outcomes()
    assert len(outcomes) == 54 + 324
    for lengths, owners in outcomes:
        winner = winning_segments(torch.tensor(lengths, dtype=torch.int32), torch.tensor(owners))
        assert winner.tolist() == reference_winners(lengths, owners)


def sampler_output(lengths: list[int], num_rows: list[int], *, logprobs: bool) -> Any:
    """The output of segments: token `10 * segment + depth` at each depth."""
    starts = np.concatenate([[0], np.cumsum(num_rows)]).tolist()
    segments, depths = (
        np.repeat(np.arange(len(lengths)), num_rows),
        np.concatenate([*map(np.arange, num_rows)]),
    )
    of_rows = torch.from_numpy(10 * segments + depths)
    return SamplerOutput(
        sampled_token_ids=10 * torch.arange(len(lengths))[:, None] + torch.arange(4),
        logprobs_tensors=LogprobsTensors(of_rows[:, None], of_rows[:, None].float(), of_rows, starts)
        if logprobs
        else None,
        num_nans=None,
        num_sampled=torch.tensor(lengths, dtype=torch.int32),
        num_rejected=torch.tensor(num_rows, dtype=torch.int32) - torch.tensor(lengths, dtype=torch.int32),
    )


def test_the_output_has_the_winners_tokens_and_the_chains_rejected_rows() -> None:
    """The first request has four rows and wins with its side path of three; the second has no tree."""
    output = sampler_output([1, 2, 3], [4, 2, 3], logprobs=True)
    winner = winning_segments(output.num_sampled, torch.tensor([0]))
    starts = torch.tensor([0, 4, 6, 9])
    own = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 3, 0, 1])
    found = output_of_winners(output, winner, lambda: rows_of_winners(winner, starts, *own))
    assert found.sampled_token_ids.tolist() == [[20, 21, 22, 23], [10, 11, 12, 13]]
    assert found.num_sampled.tolist() == [3, 2]
    assert found.num_rejected.tolist() == [1, 0]
    assert found.logprobs_tensors.cu_num_generated_tokens == [0, 4, 6]
    assert found.logprobs_tensors.selected_token_ranks.tolist() == [20, 21, 22, 22, 10, 11]


class ToyCache:
    """A KV cache whose entries are the positions and tokens written there; two requests and their paths."""

    def __init__(self, lengths: list[int], owners: list[int]) -> None:
        self.cache = torch.full((POOL.num_cache_blocks, BLOCK, 2), -1)
        self.copier = BlockCopier([self.cache], POOL.num_cache_blocks)
        self.owners, self.start = torch.tensor(owners), torch.tensor(lengths)
        self.own_tables = torch.arange(1, 1 + 2 * WIDTH, dtype=torch.int32).view(2, WIDTH) % POOL.first_block
        for request, length in enumerate(lengths):
            for position in range(length):
                self.write(self.own_tables[request], position, 100 * request)

    def slot(self, table: torch.Tensor, position: int) -> tuple[int, int]:
        return int(table[position // BLOCK]), position % BLOCK

    def write(self, table: torch.Tensor, position: int, token: int) -> None:
        self.cache[self.slot(table, position)] = torch.tensor([position, token])

    def read(self, table: torch.Tensor, num: int) -> list[list[int]]:
        return [self.cache[self.slot(table, position)].tolist() for position in range(num)]

    def run(self, winner: list[int], num_accepted: list[int], num_rows: int) -> None:
        """A step in which every path writes `num_rows` rows; checks what each path reads."""
        tables = self.own_tables[self.owners].clone()
        start = self.start[self.owners]
        blocks = assign_scratch_blocks(tables, start, POOL)
        self.copier.copy(*copies_in(blocks))
        for request in range(2):
            for row in range(num_rows):
                self.write(self.own_tables[request], int(self.start[request]) + row, 100 * request + 1)
        path_of_row = torch.arange(len(self.owners)).repeat_interleave(num_rows)
        positions = (start[:, None] + torch.arange(num_rows)).flatten()
        slots = slots_of_rows(tables, path_of_row, positions, BLOCK)
        for path, position, slot in zip(
            path_of_row.tolist(), positions.tolist(), slots.tolist(), strict=True
        ):
            self.cache[slot // BLOCK, slot % BLOCK] = torch.tensor([position, 10 + path])
        for path, owner in enumerate(self.owners.tolist()):
            before = [[position, 100 * owner] for position in range(int(start[path]))]
            rows = [[int(start[path]) + row, 10 + path] for row in range(num_rows)]
            assert self.read(tables[path], int(start[path]) + num_rows) == before + rows
        self.copier.copy(*copies_back(blocks, torch.tensor(winner), torch.tensor(num_accepted), BLOCK))


STARTS = [*product(range(1, 6), (3, 8))]


def check_all_steps(num_rows: int = 6) -> None:
    """Requests of all lengths around block boundaries, each of which may win with a path of its own."""
    for lengths in STARTS:
        for winner in ((-1, -1), (0, -1), (0, 2), (1, -1)):
            for num_accepted in ((0, 0), (3, 5), (5, 2)):
                toy = ToyCache(list(lengths), [0, 0, 1])
                toy.run(list(winner), list(num_accepted), num_rows)
                for request in range(2):
                    start, path = int(toy.start[request]), winner[request]
                    token = 100 * request + 1 if path < 0 else 10 + path
                    rows = [[start + row, token] for row in range(num_accepted[request] + 1)]
                    before = [[position, 100 * request] for position in range(start)]
                    found = toy.read(toy.own_tables[request], start + num_accepted[request] + 1)
                    assert found == before + rows


def test_paths_read_their_request_and_their_own_rows_and_the_winner_is_kept() -> None:
    check_all_steps()


def no_copies(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    source = args[0].scratch.flatten()
    return source, source


def shared_blocks(num_paths: int, pool: ScratchPool, device: torch.device) -> torch.Tensor:
    ids = torch.arange(pool.blocks_per_path, device=device) + pool.first_block
    return ids.expand(num_paths, -1).contiguous()


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("copies_in", no_copies), ("copies_back", no_copies), ("scratch_block_ids", shared_blocks)],
)
def test_the_toy_cache_finds_defects(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: Callable[..., Any]
) -> None:
    monkeypatch.setattr(scratch_blocks, name, mutant)
    if name != "scratch_block_ids":
        monkeypatch.setitem(globals(), name, mutant)
    with pytest.raises(AssertionError):
        check_all_steps()


def test_a_block_behind_the_last_accepted_token_is_never_written() -> None:
    """The table's entry there may be of an earlier batch, and the block another request's."""
    toy = ToyCache([3, 8], [0])
    toy.own_tables[0, 1:] = toy.own_tables[1, 1]
    before = toy.cache[toy.own_tables[1, 1]].clone()
    blocks = assign_scratch_blocks(toy.own_tables[:1].clone(), torch.tensor([3]), POOL)
    toy.copier.copy(*copies_back(blocks, torch.tensor([0]), torch.tensor([0]), BLOCK))
    assert torch.equal(toy.cache[toy.own_tables[1, 1]], before)


@pytest.mark.parametrize("layout", ["one allocation", "an allocation per layer", "kernel blocks"])
def test_blocks_are_copied_as_vllm_copies_them(layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    if layout == "one allocation":
        whole = torch.randn(8, 3, 2, 5, generator=generator)
        caches = [whole[:, layer] for layer in range(3)]
        stock_caches = [each for whole in [whole.clone()] for each in (whole[:, layer] for layer in range(3))]
    else:
        num = 8 if layout == "an allocation per layer" else 16
        caches = [torch.randn(num, 2, 5, generator=generator) for _ in range(3)]
        stock_caches = [cache.clone() for cache in caches]
    copies = [(1, 5), (2, 6), (5, 7)]
    copy_kv_cache_blocks_inplace(stock_caches, 8, copies)
    source, target = torch.tensor(copies).unbind(1)
    BlockCopier([*caches, caches[0]], 8).copy(source, target)
    assert all(map(torch.equal, caches, stock_caches))


def verify_on_device(winner_of: Callable[..., Any]) -> None:
    """Everything that a step with side paths computes, on fake tensors."""
    copier = BlockCopier([torch.zeros(POOL.num_cache_blocks, BLOCK, 8)], POOL.num_cache_blocks)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tables, start = torch.zeros(3, WIDTH, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        blocks = assign_scratch_blocks(tables, start, POOL)
        slots_of_rows(tables, torch.zeros(9, dtype=torch.int64), torch.zeros(9, dtype=torch.int64), BLOCK)
        copier.copy(*copies_in(blocks))
        num_sampled = torch.zeros(5, dtype=torch.int32)
        winner = winner_of(num_sampled, torch.zeros(3, dtype=torch.int64))
        rows = rows_of_winners(
            winner,
            torch.zeros(6, dtype=torch.int64),
            torch.zeros(4, dtype=torch.int64),
            torch.zeros(4, dtype=torch.int64),
        )
        assert rows.shape == (4,)
        copier.copy(*copies_back(blocks, winner - 2, num_sampled[:2].long(), BLOCK))


def test_a_step_with_side_paths_never_waits_for_the_device() -> None:
    """Fake tensors raise where a value or a size would have to be copied to the host."""
    verify_on_device(winning_segments)


def test_a_step_that_waits_is_detected() -> None:
    def waiting(num_sampled: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        num_sampled[0].item()
        return winning_segments(num_sampled, owner)

    with pytest.raises(DataDependentOutputException):
        verify_on_device(waiting)
