"""What looking text up costs: for one request, for a batch, for a long prompt, in a corpus of 10^8 tokens.

Everything runs on one core. Contexts and corpora of different sizes take turns, so that what is compared
is measured in the same minute. The text is made up: words by a power law, and passages that come again with
a few words changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from forerun.bench.provenance import provenance
from forerun.drafters.context_index import ContextIndex
from forerun.drafters.corpus import Corpus
from forerun.drafters.corpus_builder import build
from forerun.drafters.matches import AHEAD, LONGEST
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import DEEPEST, MOST_FROM_CORPUS, SuffixDrafter
from forerun.types import Drafter, RequestView
from records import AsJson, Record, cell, finish, quartiles

VOCAB, NODES, NEW_TOKENS = 49_152, 16, 3
SHORT, LONG, PROMPT, BATCH = 8_192, 131_072, 100_000, 256
STEPS = 400

Tokens = npt.NDArray[np.int32]


def wordy(num: int, seed: int) -> Tokens:
    """Text that repeats itself: every other passage is an earlier one with a word in twenty changed."""
    rng = np.random.default_rng(seed)
    text = (rng.random(num, dtype=np.float32) ** 4 * VOCAB).astype(np.int32)
    at = 400
    while at < num - 400:
        length = int(rng.integers(20, 200))
        start = int(rng.integers(0, at - length))
        changed = rng.random(length) < 0.05
        text[at : at + length] = np.where(changed, text[at : at + length], text[start : start + length])
        at += 2 * length
    return text


def microseconds(drafter: Drafter, views: list[RequestView]) -> float:
    """The time of one call, by request."""
    budgets = [NODES] * len(views)
    began = time.perf_counter()
    drafter.propose(views, budgets)
    return 1e6 * (time.perf_counter() - began) / len(views)


def by_context(make: type[SuffixDrafter] | type[NgramDrafter]) -> dict[int, list[float]]:
    """Proposals at both context lengths, in turns, each behind a few new tokens."""
    times: dict[int, list[float]] = {SHORT: [], LONG: []}
    texts = {size: wordy(size + NEW_TOKENS * (STEPS + 10), seed=size) for size in times}
    drafters = {size: make() for size in times}
    for step in range(STEPS + 10):
        for size, text in texts.items():
            view = RequestView("r", text[: size + NEW_TOKENS * step])
            times[size].append(microseconds(drafters[size], [view]))
    return {size: spent[10:] for size, spent in times.items()}


def by_batch() -> list[float]:
    """Milliseconds of a step for the whole batch."""
    steps = 40
    texts = [wordy(SHORT + NEW_TOKENS * steps, seed=number) for number in range(BATCH)]
    drafter = SuffixDrafter()
    times = []
    for step in range(steps):
        views = [
            RequestView(str(number), text[: SHORT + NEW_TOKENS * step]) for number, text in enumerate(texts)
        ]
        times.append(1e-3 * BATCH * microseconds(drafter, views))
    return times[5:]


def by_prompt() -> list[float]:
    """Milliseconds to index a long prompt, from nothing."""
    text = wordy(PROMPT, seed=7)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        ContextIndex(room=len(text) * 5 // 4 + 256).extend(text)
        times.append(1e3 * (time.perf_counter() - began))
    return times[2:]


def contexts(corpus: Corpus, num: int, seed: int) -> Iterator[Tokens]:
    """Ends of texts that are in a corpus for their last 2 to 12 tokens, and not before, newest first."""
    rng = np.random.default_rng(seed)
    for place in rng.integers(LONGEST, len(corpus), num):
        tail = corpus.text[place - LONGEST + 1 : place + 1][::-1].astype(np.int32) - 1
        tail[int(rng.integers(2, 13)) :] = rng.integers(0, VOCAB)
        yield tail


def by_corpus(corpora: list[Corpus]) -> dict[str, list[list[float]]]:
    """Microseconds in each corpus, in turns: the lookup alone, and a whole proposal."""
    rows = np.empty((MOST_FROM_CORPUS, AHEAD + DEEPEST), dtype=np.int32)
    drafters = [SuffixDrafter(corpora=[corpus]) for corpus in corpora]
    looked: list[list[float]] = [[] for _ in corpora]
    proposed: list[list[float]] = [[] for _ in corpora]
    tails = [list(contexts(corpus, 8000, seed=3)) for corpus in corpora]
    for number, asked in enumerate(zip(*tails, strict=True)):
        for which, (corpus, tail) in enumerate(zip(corpora, asked, strict=True)):
            if number % 2:
                began = time.perf_counter()
                corpus.look_up(tail, rows, NODES)
                looked[which].append(1e6 * (time.perf_counter() - began))
            else:
                name = str(number)
                proposed[which].append(microseconds(drafters[which], [RequestView(name, tail[::-1])]))
                drafters[which].forget(name)
    return {"lookup": [spent[100:] for spent in looked], "proposal": [spent[100:] for spent in proposed]}


def ratios(times: list[list[float]], size: int = 100) -> list[float]:
    """The second over the first, of medians over so many calls, since single calls are mostly noise."""
    first, second = (np.array(spent[: len(spent) // size * size]).reshape(-1, size) for spent in times)
    return [float(value) for value in np.median(second, axis=1) / np.median(first, axis=1)]


TOUCH = """
import re, sys
from pathlib import Path
import numpy as np
from forerun.drafters.corpus import Corpus
corpus = Corpus(Path(sys.argv[1]))
total = int(corpus.text.sum(dtype=np.int64)) + int(corpus.places.sum(dtype=np.int64))
print("ready", flush=True)
sys.stdin.readline()
smaps = Path("/proc/self/smaps").read_text()
mine = smaps[smaps.index(Path(sys.argv[1]).name):]
print(*(re.search(key + ": +([0-9]+)", mine)[1] for key in ("Rss", "Pss", "Private_Clean", "Private_Dirty")))
"""


def resident(file: Path) -> tuple[float, float]:
    """Two processes read all of a corpus: megabytes mapped in one, and the share of them that is its own."""
    command = [sys.executable, "-c", TOUCH, str(file)]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    rss, _, clean, dirty = map(int, readers[0].communicate("\n")[0].split())
    readers[1].communicate("\n")
    return rss / 1e3, (clean + dirty) / rss


def measure_corpora(directory: Path, num_tokens: int, say: Any) -> list[dict[str, Any]]:
    """Everything about a corpus of so many tokens beside one of 10^6."""
    files = {size: directory / f"{size}.fri" for size in (10**6, num_tokens)}
    for size, file in files.items():
        say(f"building a corpus of {size:,} tokens")
        parts = np.array_split(wordy(size, seed=1), max(1, size // 100_000))
        build(parts, file, vocabulary="made up", tokenizer="made up")
    say("looking up")
    large = files[num_tokens]
    opening = []
    for _ in range(20):
        began = time.perf_counter()
        Corpus(large)
        opening.append(1e3 * (time.perf_counter() - began))
    times = by_corpus([Corpus(file) for file in files.values()])
    megabytes, private = resident(large)
    name = f"{num_tokens:.0e} tokens".replace("e+0", "e")
    return [
        line("a lookup in 1e6 tokens, µs", quartiles(times["lookup"][0])),
        line(f"a lookup in {name}, over one in 1e6", quartiles(ratios(times["lookup"])), 2.0),
        line(f"a proposal from {name}, over one from 1e6", quartiles(ratios(times["proposal"])), 2.0),
        line(f"bytes a token on disk, {name}", [large.stat().st_size / num_tokens], 10.0),
        line(f"opening {name}, ms", quartiles(opening), 100.0),
        line(f"megabytes mapped by each of two readers, {name}", [megabytes]),
        line("share of these that is not shared", [private], 0.05),
    ]


def line(name: str, figure: Any, limit: float | None = None) -> dict[str, Any]:
    """One figure, with its quartiles where it has any."""
    return {"name": name, "figure": list(figure), "limit": limit}


def measure(num_tokens: int, say: Any) -> list[dict[str, Any]]:
    """All lines."""
    say("one request")
    suffix, ngram = by_context(SuffixDrafter), by_context(NgramDrafter)
    lines = [
        line("suffix: a proposal at 8k tokens, µs", quartiles(suffix[SHORT]), 20.0),
        line("suffix: at 128k tokens, over 8k", quartiles(ratios([suffix[SHORT], suffix[LONG]], 20)), 1.5),
        line("ngram: a proposal at 8k tokens, µs", quartiles(ngram[SHORT]), 20.0),
        line("ngram: at 128k tokens, over 8k", quartiles(ratios([ngram[SHORT], ngram[LONG]], 20)), 1.5),
    ]
    say("a batch")
    lines.append(line("a step for 256 requests of 8k tokens, ms", quartiles(by_batch()), 5.0))
    say("a long prompt")
    lines.append(line("a prompt of 100k tokens, ms", quartiles(by_prompt()), 50.0))
    with tempfile.TemporaryDirectory() as directory:
        return lines + measure_corpora(Path(directory), num_tokens, say)


def show(lines: list[dict[str, Any]]) -> None:
    """The table for people."""
    table = Table(title=f"{NODES} nodes a request, one core")
    for column in ("", "figure", "limit"):
        table.add_column(column, justify="right" if column else "left")
    for row in lines:
        figure = cell(row["figure"]) if len(row["figure"]) == 3 else f"{row['figure'][0]:.2f}"
        met = row["limit"] is None or row["figure"][0] <= row["limit"]
        table.add_row(
            row["name"],
            figure,
            "" if row["limit"] is None else f"{row['limit']:g}",
            style=None if met else "red",
        )
    Console().print(table)
    Console().print("Medians with their quartiles.")


def main(
    record: Record = None,
    as_json: AsJson = False,
    num_tokens: Annotated[int, typer.Option(min=2 * 10**6, help="The size of the large corpus.")] = 10**8,
) -> None:
    """What looking text up costs."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with Console(stderr=True).status("") as status:
        lines = measure(num_tokens, status.update)
    facts = provenance("make bench-drafters", ("numpy", "numba", "pydivsufsort"), threads=1)
    finish(lines, facts, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
