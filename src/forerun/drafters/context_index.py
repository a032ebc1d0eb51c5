"""Where the contexts of a growing text were seen before.

A context is the last 1, 2, 4, ... 32 tokens before some place in the text: the rungs of a ladder. For every
place and rung the index holds the place before it with the same context, so that the sightings of a context
are a chain from the newest to the oldest. Appending a token finds these places anyway, so asking what the
last token's context was followed by earlier costs no search at all.

A context climbs to the next rung only when it is seen for the second time; until then its one sighting is
found from the rung below. Text that does not repeat therefore costs two or three table entries a token, not
six.

Places are found by a hash of their context and compared with it token by token, so that what is found does
not depend on the hash, and no text can be made up that is mistaken for another.
"""

from __future__ import annotations

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_hash import Words, fold
from forerun.drafters.matches import AHEAD, BREAK, COUNT, LONGEST, MATCH, OWN, PLACE, SOURCE, Ints
from forerun.drafters.rebuildable import SEED, Rebuildable, make_table
from forerun.types import IntArray

NUM_RUNGS = LONGEST.bit_length()
NUM_FREQUENT = 16
"""How many of the text's most frequent tokens are at hand, for contexts that were never seen."""

MOST_WALKED = 32
"""The most recent sightings of a context that are looked at on each rung."""

NOWHERE = -1
_COUNTS, _TEXT = NUM_RUNGS, NUM_RUNGS + 1
_NUM_ROWS = NUM_RUNGS + 2
_LENGTH, _RUN, _USED, _SEED, _NUM_FREQUENT, _FREQUENT = 0, 1, 2, 3, 4, 5

# A slot of the table: 29 bits of the key, the rung, and the place plus one.
_PLACE, _TAG = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFF800000000)
_RUNG_SHIFT = np.uint64(32)
_ONE = np.uint64(1)


class ContextIndex(Rebuildable):
    """A text and where its contexts were seen.

    `BREAK` among its tokens parts two texts: no context and no guess reaches across it. The arrays: `book`
    has one column a token and, as rows, the chain of every rung, how often the token had been seen, and the
    text itself; `heads` is the hash table of each context's latest place; `meta` holds the few numbers that
    change.
    """

    __slots__ = ("book", "heads", "meta")

    def __init__(self, room: int = 256, most: int = 1 << 20) -> None:
        super().__init__(room, most)

    @property
    def text(self) -> Ints:
        """The tokens that are indexed, as they lie."""
        return self.book[_TEXT, : self.meta[_LENGTH]]

    @property
    def room(self) -> int:
        """How many tokens there is space for."""
        return int(self.book.shape[1])

    @property
    def num_slots(self) -> int:
        """How many contexts the table of heads could hold."""
        return len(self.heads)

    @property
    def num_bytes(self) -> int:
        """The memory that the index holds."""
        return self.book.nbytes + self.heads.nbytes + self.meta.nbytes

    def _feed(self, tokens: Ints) -> int:
        return feed(self.book, self.heads, self.meta, tokens)

    def _clear(self, room: int, slots: int) -> None:
        self.book: Ints = np.zeros((_NUM_ROWS, room), dtype=np.int32)
        self.heads: Words = make_table(max(slots, 2 * room))
        self.meta: IntArray = np.zeros(_FREQUENT + 2 * NUM_FREQUENT, dtype=np.int64)
        self.meta[_SEED] = SEED


@compiled
def feed(book: Ints, heads: Words, meta: IntArray, tokens: Ints) -> int:
    """Append tokens and return how many of them there was room for."""
    most_used = heads.size * 3 // 4 - 2 * NUM_RUNGS
    for i in range(tokens.size):
        here = meta[_LENGTH]
        if here == book.shape[1] or meta[_USED] > most_used:
            return i
        meta[_LENGTH] += 1
        book[_TEXT, here] = tokens[i]
        for rung in range(NUM_RUNGS):
            book[rung, here] = NOWHERE
        if tokens[i] == BREAK:
            meta[_RUN] = 0
        else:
            meta[_RUN] += 1
            _climb(book, heads, meta, here)
            _count(book, meta, here)
    return tokens.size


@compiled
def _climb(book: Ints, heads: Words, meta: IntArray, here: int) -> None:
    """Enter a place on every rung up to the first where its context is new."""
    text = book[_TEXT]
    key, taken = np.uint64(meta[_SEED]), 0
    for rung in range(NUM_RUNGS):
        if 1 << rung > meta[_RUN]:
            return
        while taken < 1 << rung:
            key = fold(key, text[here - taken])
            taken += 1
        there = _enter(text, heads, meta, key, rung, here)
        book[rung, here] = there
        if there == NOWHERE:
            return
        if book[rung, there] == NOWHERE and rung + 1 < NUM_RUNGS:
            _lift(text, heads, meta, there, rung + 1)


@compiled
def _lift(text: Ints, heads: Words, meta: IntArray, there: int, rung: int) -> None:
    """Enter an earlier place one rung higher, now that its context is no longer the only one of its kind."""
    key = np.uint64(meta[_SEED])
    for i in range(1 << rung):
        if i > there or text[there - i] == BREAK:
            return
        key = fold(key, text[there - i])
    _enter(text, heads, meta, key, rung, there)


@compiled
def _enter(text: Ints, heads: Words, meta: IntArray, key: np.uint64, rung: int, here: int) -> int:
    """Make `here` the latest place of its context and return the one before, or NOWHERE."""
    mask = np.uint64(heads.size - 1)
    slot = key & mask
    wanted = (key & _TAG) | (np.uint64(rung) << _RUNG_SHIFT)
    while heads[slot]:
        if (heads[slot] ^ wanted) & ~_PLACE == 0:
            there = int(np.int64(heads[slot] & _PLACE)) - 1
            if _agree(text, there, here, 1 << rung):
                heads[slot] = wanted | np.uint64(here + 1)
                return there
        slot = (slot + _ONE) & mask
    heads[slot] = wanted | np.uint64(here + 1)
    meta[_USED] += 1
    return NOWHERE


@compiled
def _agree(text: Ints, there: int, here: int, length: int) -> bool:
    """Whether two places have so many tokens of context in common."""
    match = 0
    while match < length and text[there - match] == text[here - match]:
        match += 1
    return match == length


@compiled
def _find(text: Ints, heads: Words, key: np.uint64, rung: int, tail: Ints) -> int:
    """The latest place of a context that is given newest first, or NOWHERE."""
    mask = np.uint64(heads.size - 1)
    slot = key & mask
    wanted = (key & _TAG) | (np.uint64(rung) << _RUNG_SHIFT)
    while heads[slot]:
        if (heads[slot] ^ wanted) & ~_PLACE == 0:
            there = int(np.int64(heads[slot] & _PLACE)) - 1
            if _match(text, there, tail) >= 1 << rung:
                return there
        slot = (slot + _ONE) & mask
    return NOWHERE


@compiled
def _match(text: Ints, there: int, tail: Ints) -> int:
    """How many tokens of context a place has in common with a tail, newest first."""
    match = 0
    while match < LONGEST and match <= there and text[there - match] == tail[match]:
        match += 1
    return match


@compiled
def _count(book: Ints, meta: IntArray, here: int) -> None:
    """Keep the most frequent tokens, the more recent of equals first to stay."""
    before = book[0, here]
    count = 1 if before == NOWHERE else book[_COUNTS, before] + 1
    book[_COUNTS, here] = count
    least = 0
    num = meta[_NUM_FREQUENT]
    top = meta[_FREQUENT:]
    for i in range(num):
        if top[2 * i + 1] == before and before != NOWHERE:
            top[2 * i], top[2 * i + 1] = count, here
            return
        if (top[2 * i], top[2 * i + 1]) < (top[2 * least], top[2 * least + 1]):
            least = i
    if num < NUM_FREQUENT:
        least = num
        meta[_NUM_FREQUENT] += 1
    elif count < top[2 * least]:
        return
    top[2 * least], top[2 * least + 1] = count, here


@compiled
def read_on(
    book: Ints,
    heads: Words,
    meta: IntArray,
    tokens: Ints,
    tail: Ints,
    sightings: Ints,
    depth: int,
    most: int,
) -> int:
    """Append tokens and recall, in one go; -1, and nothing done, where there might not be room for them."""
    if meta[_LENGTH] + tokens.size > book.shape[1]:
        return -1
    if meta[_USED] + 2 * NUM_RUNGS * (tokens.size + 1) > heads.size * 3 // 4:
        return -1
    feed(book, heads, meta, tokens)
    return recall_own(book, meta, tail, sightings, depth, most)


@compiled
def recall_own(book: Ints, meta: IntArray, tail: Ints, sightings: Ints, depth: int, most: int) -> int:
    """Note where the text's own last context was seen before, and the text's most frequent tokens.

    Also writes the last tokens, newest first, into `tail`, for asking elsewhere. Returns how many sightings
    were noted. Where a sighting runs into the end of the text it is read on from its own beginning, as a
    text does that repeats itself.
    """
    text = book[_TEXT]
    length = meta[_LENGTH]
    for i in range(LONGEST):
        tail[i] = text[length - 1 - i] if i < length else BREAK - 1
    if not length:
        return 0
    starts = np.empty(NUM_RUNGS, dtype=np.int32)
    for rung in range(NUM_RUNGS):
        starts[rung] = book[rung, length - 1]
    num = _walk(book, starts, tail, sightings[:most])
    top = meta[_FREQUENT:]
    for i in range(meta[_NUM_FREQUENT]):
        if top[2 * i] > 1 and num < sightings.shape[0]:
            sightings[num, MATCH], sightings[num, COUNT] = 0, top[2 * i]
            sightings[num, PLACE] = top[2 * i + 1] - 1
            num += 1
    for row in range(num):
        sightings[row, SOURCE] = OWN
        begin = place = int(sightings[row, PLACE]) + 1
        for i in range(depth):
            sightings[row, AHEAD + i] = text[place]
            place = place + 1 if place + 1 < length else begin
    return num


@compiled
def recall(book: Ints, heads: Words, meta: IntArray, tail: Ints, sightings: Ints, depth: int) -> int:
    """Note where a context from elsewhere was seen in this text, and return how many sightings that gave."""
    text = book[_TEXT]
    starts = np.full(NUM_RUNGS, NOWHERE, dtype=np.int32)
    key, taken = np.uint64(meta[_SEED]), 0
    for rung in range(NUM_RUNGS):
        while taken < 1 << rung:
            key = fold(key, tail[taken])
            taken += 1
        starts[rung] = _find(text, heads, key, rung, tail)
        if starts[rung] == NOWHERE:
            break
    num = _walk(book, starts, tail, sightings)
    for row in range(num):
        begin = int(sightings[row, PLACE]) + 1
        over = False
        for i in range(depth):
            over = over or begin + i >= meta[_LENGTH] or text[begin + i] == BREAK
            sightings[row, AHEAD + i] = BREAK if over else text[begin + i]
    return num


@compiled
def _walk(book: Ints, starts: Ints, tail: Ints, sightings: Ints) -> int:
    """Follow the chains from the highest rung down, newest first, and note each sighting once.

    A sighting that is longer than its rung belongs to a rung above and was met there, if anything was.
    """
    text = book[_TEXT]
    num, above = 0, False
    for rung in range(NUM_RUNGS - 1, -1, -1):
        there = starts[rung]
        for _ in range(MOST_WALKED):
            if there == NOWHERE or num == sightings.shape[0]:
                break
            match = _match(text, there, tail)
            if match and not (above and match >= 2 << rung):
                sightings[num, MATCH], sightings[num, COUNT], sightings[num, PLACE] = match, 1, there
                num += 1
            there = book[rung, there]
        above = above or starts[rung] != NOWHERE
    return num
