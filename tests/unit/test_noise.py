from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from forerun.core.exponential_race import clocks
from forerun.core.noise import Stream, philox, token_noise, uniforms


def test_philox_matches_the_published_test_vectors() -> None:
    """Known-answer tests of Random123 for philox4x32-10."""
    top = 0xFFFFFFFF
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    assert philox(0, 0, 0, 0, 0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox(top, top, top, top, top, top) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox(*pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_philox_is_equal_for_python_numpy_and_torch_integers() -> None:
    counters = np.arange(1000) * 4_294_961 % 2**32
    by_numpy = philox(counters, 1, 2, 3, 4, 5)
    by_torch = philox(torch.from_numpy(counters), 1, 2, 3, 4, 5)
    by_python = [philox(int(c), 1, 2, 3, 4, 5) for c in counters]
    for word in range(4):
        assert by_numpy[word].tolist() == by_torch[word].tolist() == [words[word] for words in by_python]


def test_compiled_uniforms_equal_philox() -> None:
    key, position, index = 2**62 + 17, 2**33 + 5, 9
    high, low, _, _ = philox(index, position & 0xFFFFFFFF, 1, position >> 32, key & 0xFFFFFFFF, key >> 32)
    expected = ((high << 21) | (low >> 11)) * 2.0**-53
    made = uniforms(np.array([key]), Stream.NEXT_TOKEN, np.array([position]), np.array([index]))
    assert made.tolist() == [expected]


def test_uniforms_lie_below_one_and_are_uniform() -> None:
    size = 20_000
    u = uniforms(np.full(size, 7), Stream.ACCEPT, np.arange(size), np.arange(size) % 64)
    assert (u >= 0).all()
    assert (u < 1).all()
    assert stats.kstest(u, "uniform").pvalue > 1e-3


def test_no_two_addresses_share_a_number() -> None:
    ones = np.ones(1, dtype=np.int64)
    addresses = [
        uniforms(key * ones, stream, position * ones, index * ones)[0]
        for key in (0, 1, 2**32)
        for stream in Stream
        for position in (0, 1, 2**32)
        for index in (0, 1, 2)
    ]
    assert len(set(addresses)) == len(addresses)


def test_a_negative_seed_is_valid() -> None:
    ones = np.ones(1, dtype=np.int64)
    u = uniforms(-5 * ones, Stream.ACCEPT, ones, ones)
    assert 0 <= u[0] < 1


def test_the_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    assert clocks(100, key=3, position=4) == clocks(5000, key=3, position=4)[:100]


def test_token_noise_is_the_same_in_numpy_and_torch() -> None:
    tokens = np.arange(3000)
    first, rest = token_noise(tokens, 2**33 + 1, 2**62 + 3)
    first_torch, rest_torch = token_noise(torch.from_numpy(tokens), 2**33 + 1, 2**62 + 3)
    assert first.tolist() == first_torch.tolist()
    assert rest.tolist() == rest_torch.tolist()
    assert first.max() < 2**16
    assert rest.max() < 2**48


def test_clocks_are_exponential() -> None:
    assert stats.kstest(clocks(20_000, key=1, position=2), "expon").pvalue > 1e-3
