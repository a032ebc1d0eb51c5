"""Which requests the draft model can draft for, after steps that it skipped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forerun.engines.vllm import draft_kv_cache
from forerun.engines.vllm.draft_kv_cache import DraftKVCache

BLOCK = 4


def request(name: str, hashes: str) -> SimpleNamespace:
    return SimpleNamespace(request_id=name, block_hashes=list(hashes))


def finish_after_skip(cache: DraftKVCache, name: str, hashes: str, *, skipped_at: int) -> None:
    """A request whose step at this position the draft model skipped, from its start to its end."""
    each = request(name, hashes)
    cache.start_step(each, 0)
    cache.skip_step(name, skipped_at)
    assert not cache.has_all(name)
    cache.forget(each)


def test_a_skipped_step_ends_drafting_for_its_requests() -> None:
    cache = DraftKVCache(BLOCK)
    cache.start_step(request("a", "xy"), 0)
    cache.start_step(request("b", "xy"), 0)
    cache.skip_step("a", 9)
    cache.start_step(request("a", "xy"), 10)
    assert not cache.has_all("a")
    assert cache.has_all("b")


@pytest.mark.parametrize(
    ("hashes", "num_cached", "can_draft"),
    [
        ("xyz", 8, True),  # blocks 0 and 1 end before the skipped token 9
        ("xyz", 12, False),
        ("xyz", 0, True),  # computed anew, with the draft model
        ("xyw", 12, True),
    ],
)
def test_only_cached_blocks_with_a_skipped_token_are_incomplete(
    hashes: str, num_cached: int, can_draft: bool
) -> None:
    cache = DraftKVCache(BLOCK)
    finish_after_skip(cache, "first", "xyz", skipped_at=9)
    cache.start_step(request("second", hashes), num_cached)
    assert cache.has_all("second") == can_draft


def test_blocks_of_a_request_with_incomplete_blocks_are_incomplete() -> None:
    cache = DraftKVCache(BLOCK)
    finish_after_skip(cache, "first", "xy", skipped_at=5)
    second = request("second", "xyz")
    cache.start_step(second, 8)
    cache.forget(second)
    cache.start_step(request("third", "xyz"), 12)
    assert not cache.has_all("third")


def test_the_oldest_incomplete_blocks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_kv_cache, "MAX_BLOCKS", 2)
    cache = DraftKVCache(BLOCK)
    for name in "abc":
        finish_after_skip(cache, name, name, skipped_at=0)
    for name in "abc":
        cache.start_step(request(f"next {name}", name), BLOCK)
    assert [cache.has_all(f"next {name}") for name in "abc"] == [True, False, False]
