"""Measures the cost of lookup: for one request, a batch, a long prompt, and a corpus of 10^8 tokens.

Everything runs on one core. Contexts and corpora of different sizes are interleaved, so that compared figures
come from the same minute. The text is synthetic: tokens with a power-law distribution, and repeated passages
with a few tokens changed.
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
from forerun.drafters.matches import CONTINUATION, MAX_MATCH
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.static_table import StaticTable
from forerun.drafters.suffix import MAX_CORPUS_MATCHES, MAX_DEPTH, SuffixDrafter
from forerun.types import Drafter, RequestView, TopTokens
from records import AsJson, Record, cell, finish, quartiles

VOCAB, NODES, NEW_TOKENS = 49_152, 16, 3
SHORT, LONG, PROMPT, BATCH = 8_192, 131_072, 100_000, 256
STEPS = 400

Tokens = npt.NDArray[np.int32]


def repetitive_text(num: int, seed: int) -> Tokens:
    """Repetitive text: every other passage is an earlier one with a token in twenty changed."""
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
    """Time per request of one call."""
    budgets = [NODES] * len(views)
    began = time.perf_counter()
    drafter.propose(views, budgets)
    return 1e6 * (time.perf_counter() - began) / len(views)


def by_context(make: type[SuffixDrafter] | type[NgramDrafter]) -> dict[int, list[float]]:
    """Proposals at both context lengths, interleaved, each after a few new tokens."""
    times: dict[int, list[float]] = {SHORT: [], LONG: []}
    texts = {size: repetitive_text(size + NEW_TOKENS * (STEPS + 10), seed=size) for size in times}
    drafters = {size: make() for size in times}
    for step in range(STEPS + 10):
        for size, text in texts.items():
            view = RequestView("r", text[: size + NEW_TOKENS * step])
            times[size].append(microseconds(drafters[size], [view]))
    return {size: spent[10:] for size, spent in times.items()}


def random_rows(rng: np.random.Generator, contexts: Tokens) -> TopTokens:
    """Eight successors for each context."""
    tokens = (rng.random((len(contexts), 8), dtype=np.float32) ** 4 * VOCAB).astype(np.int32)
    probs = np.sort(rng.dirichlet(np.ones(9), len(contexts))[:, :8])[:, ::-1]
    return TopTokens(contexts, tokens, probs.astype(np.float32))


def by_sources() -> tuple[dict[int, list[float]], list[float]]:
    """Proposals with all sources at both context lengths, and the learning of a step's logits.

    Every step has rows for its new tokens and for rejected ones.
    """
    rng = np.random.default_rng(0)
    static_table = StaticTable(VOCAB)
    every = np.arange(VOCAB, dtype=np.int32)
    static_table.add(random_rows(rng, np.stack([every, every], axis=1)))
    times: dict[int, list[float]] = {SHORT: [], LONG: []}
    learning = []
    texts = {size: repetitive_text(size + NEW_TOKENS * (STEPS + 10), seed=size) for size in times}
    drafters = {size: SuffixDrafter(static_table=static_table) for size in times}
    for step in range(STEPS + 10):
        for size, text in texts.items():
            known = text[: size + NEW_TOKENS * step]
            times[size].append(microseconds(drafters[size], [RequestView("r", known)]))
            rejected = text[rng.integers(1, size, NODES + 1 - NEW_TOKENS)]
            last = np.concatenate([rejected, known[-NEW_TOKENS:]])
            previous = np.concatenate([rejected[::-1], known[-NEW_TOKENS - 1 : -1]])
            rows = random_rows(rng, np.stack([previous, last], axis=1))
            began = time.perf_counter()
            drafters[size].learn_logits("r", rows)
            learning.append(1e6 * (time.perf_counter() - began))
    return {size: spent[10:] for size, spent in times.items()}, learning[20:]


def by_batch() -> list[float]:
    """Milliseconds per step for the whole batch."""
    steps = 40
    texts = [repetitive_text(SHORT + NEW_TOKENS * steps, seed=number) for number in range(BATCH)]
    drafter = SuffixDrafter()
    times = []
    for step in range(steps):
        views = [
            RequestView(str(number), text[: SHORT + NEW_TOKENS * step]) for number, text in enumerate(texts)
        ]
        times.append(1e-3 * BATCH * microseconds(drafter, views))
    return times[5:]


def by_prompt() -> list[float]:
    """Milliseconds to index a long prompt from scratch."""
    text = repetitive_text(PROMPT, seed=7)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        ContextIndex(capacity=len(text) * 5 // 4 + 256).extend(text)
        times.append(1e3 * (time.perf_counter() - began))
    return times[2:]


def contexts(corpus: Corpus, num: int, seed: int) -> Iterator[Tokens]:
    """Contexts whose last 2 to 12 tokens occur in a corpus, but not more, latest token first."""
    rng = np.random.default_rng(seed)
    for position in rng.integers(MAX_MATCH, len(corpus), num):
        tail = corpus.text[position - MAX_MATCH + 1 : position + 1][::-1].astype(np.int32) - 1
        tail[int(rng.integers(2, 13)) :] = rng.integers(0, VOCAB)
        yield tail


def by_corpus(corpora: list[Corpus]) -> dict[str, list[list[float]]]:
    """Microseconds in each corpus, interleaved: the lookup alone, and a whole proposal."""
    rows = np.empty((MAX_CORPUS_MATCHES, CONTINUATION + MAX_DEPTH), dtype=np.int32)
    drafters = [SuffixDrafter(corpora=[corpus]) for corpus in corpora]
    lookups: list[list[float]] = [[] for _ in corpora]
    proposals: list[list[float]] = [[] for _ in corpora]
    tails = [list(contexts(corpus, 8000, seed=3)) for corpus in corpora]
    for number, context_row in enumerate(zip(*tails, strict=True)):
        for which, (corpus, tail) in enumerate(zip(corpora, context_row, strict=True)):
            if number % 2:
                began = time.perf_counter()
                corpus.look_up(tail, rows, NODES)
                lookups[which].append(1e6 * (time.perf_counter() - began))
            else:
                name = str(number)
                proposals[which].append(microseconds(drafters[which], [RequestView(name, tail[::-1])]))
                drafters[which].forget(name)
    return {"lookup": [spent[100:] for spent in lookups], "proposal": [spent[100:] for spent in proposals]}


def ratios(times: list[list[float]], size: int = 100) -> list[float]:
    """Ratios of medians over `size` calls, second to first; single calls are mostly noise."""
    first, second = (np.array(spent[: len(spent) // size * size]).reshape(-1, size) for spent in times)
    return [float(value) for value in np.median(second, axis=1) / np.median(first, axis=1)]


TOUCH = """
import re, sys
from pathlib import Path
import numpy as np
from forerun.drafters.corpus import Corpus
corpus = Corpus(Path(sys.argv[1]))
total = int(corpus.text.sum(dtype=np.int64)) + int(corpus.positions.sum(dtype=np.int64))
print("ready", flush=True)
sys.stdin.readline()
smaps = Path("/proc/self/smaps").read_text()
entry = smaps[smaps.index(Path(sys.argv[1]).name):]
print(*(re.search(key + ": +([0-9]+)", entry)[1] for key in ("Rss", "Pss", "Private_Clean", "Private_Dirty")))
"""


def resident(file: Path) -> tuple[float, float]:
    """Megabytes of a corpus that each of two reading processes maps, and the share that is private."""
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


def measure_corpora(directory: Path, num_tokens: int, report: Any) -> list[dict[str, Any]]:
    """All figures of a corpus of `num_tokens` tokens, relative to one of 10^6."""
    files = {size: directory / f"{size}.fri" for size in (10**6, num_tokens)}
    for size, file in files.items():
        report(f"building a corpus of {size:,} tokens")
        parts = np.array_split(repetitive_text(size, seed=1), max(1, size // 100_000))
        build(parts, file, vocabulary="synthetic", tokenizer="synthetic")
    report("looking up")
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
        line(f"bytes per token on disk, {name}", [large.stat().st_size / num_tokens], 10.0),
        line(f"opening {name}, ms", quartiles(opening), 100.0),
        line(f"megabytes mapped by each of two readers, {name}", [megabytes]),
        line("private share of the mapped megabytes", [private], 0.05),
    ]


def line(name: str, figure: Any, limit: float | None = None) -> dict[str, Any]:
    """One figure, with its quartiles if it has any."""
    return {"name": name, "figure": list(figure), "limit": limit}


def measure(num_tokens: int, report: Any) -> list[dict[str, Any]]:
    """All lines of the record."""
    report("one request")
    suffix, ngram = by_context(SuffixDrafter), by_context(NgramDrafter)
    lines = [
        line("suffix: a proposal at 8k tokens, µs", quartiles(suffix[SHORT]), 20.0),
        line("suffix: at 128k tokens, over 8k", quartiles(ratios([suffix[SHORT], suffix[LONG]], 20)), 1.5),
        line("ngram: a proposal at 8k tokens, µs", quartiles(ngram[SHORT]), 20.0),
        line("ngram: at 128k tokens, over 8k", quartiles(ratios([ngram[SHORT], ngram[LONG]], 20)), 1.5),
    ]
    report("all sources")
    sources, learning = by_sources()
    lines += [
        line("all sources: a proposal at 8k tokens, µs", quartiles(sources[SHORT]), 35.0),
        line("all sources: a proposal at 128k tokens, µs", quartiles(sources[LONG]), 35.0),
        line(f"learning {NODES + 1} rows of logits, µs", quartiles(learning)),
    ]
    report("a batch")
    lines.append(line("a step for 256 requests of 8k tokens, ms", quartiles(by_batch()), 5.0))
    report("a long prompt")
    lines.append(line("a prompt of 100k tokens, ms", quartiles(by_prompt()), 50.0))
    with tempfile.TemporaryDirectory() as directory:
        return lines + measure_corpora(Path(directory), num_tokens, report)


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(title=f"{NODES} nodes per request, one core")
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
    Console().print("Medians with quartiles.")


def main(
    record: Record = None,
    as_json: AsJson = False,
    num_tokens: Annotated[int, typer.Option(min=2 * 10**6, help="Tokens of the large corpus.")] = 10**8,
) -> None:
    """Measure the cost of lookup."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with Console(stderr=True).status("") as status:
        lines = measure(num_tokens, status.update)
    facts = provenance("make bench-drafters", ("numpy", "numba", "pydivsufsort"), threads=1)
    finish(lines, facts, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
