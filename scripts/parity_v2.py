"""Compares forerun on vLLM's V2 model runner with stock V2 without speculation, on the test bench.

Prints one JSON line per cell: settings, mode, drafter, num_prompts, identical, tokens_per_step. The exit code
is 1 if a cell differs; with --sabotage, 1 if no cell differs. The bench runs the real runner on a CPU, with
its kernels in Triton's interpreter; see tests/v2_bench.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.chi_square import exact_probabilities, p_value
from v2_bench import distribution
from v2_bench.models import Models, make_models
from v2_bench.parity import Drafter, Mode, compare, run_forerun, run_parity
from v2_bench.sabotage import NAMES as SABOTAGES
from v2_bench.scenarios import NAMES as SCENARIOS
from v2_bench.settings import ALL_NAMES

FULL: dict[str, Any] = {"scenarios": SCENARIOS, "batches": ("alone", "batched")}
QUICK: dict[str, Any] = {"scenarios": SCENARIOS, "batches": ("mixed",), "num_prompts": 1, "num_tokens": 20}
P_VALUE = 1e-3


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one mixed batch of all settings, and scenarios")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts of the settings")
    parser.add_argument("--trees", action="store_true", help="draft trees, in sync mode")
    parser.add_argument("--mode", action="append", choices=("sync", "async"), help="default: both")
    parser.add_argument("--drafter", action="append", choices=("lookup", "draft_model"), help="default: both")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="run forerun with this defect")
    parser.add_argument("--distribution", action="store_true", help="chi-square test of unseeded requests")
    parser.add_argument("--num-samples", type=int, default=20_000, help="samples of --distribution")
    return parser.parse_args()


def part_of(names: tuple[str, ...], part: str) -> tuple[str, ...]:
    """The I-th of N parts."""
    index, number = map(int, part.split("/"))
    return names[index - 1 :: number]


def engine_pool() -> ThreadPoolExecutor:
    """One thread per core, which waits for an engine's process on that core."""
    cores = sorted(os.sched_getaffinity(0))
    unused = iter(cores)

    def pin_to_core() -> None:
        os.sched_setaffinity(0, {next(unused)})  # of this thread and the processes that it starts

    return ThreadPoolExecutor(len(cores), initializer=pin_to_core)


def matrix(models: Models, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The records of all cells."""
    request = {**(QUICK if arguments.quick else FULL), "settings": part_of(ALL_NAMES, arguments.part)}
    if not arguments.part.startswith("1/"):
        request["scenarios"] = ()
    defect = {"sabotage": arguments.sabotage} if arguments.sabotage else {}
    modes: tuple[Mode, ...] = arguments.mode or ("sync", "async")
    drafters: tuple[Drafter, ...] = arguments.drafter or ("lookup", "draft_model")
    if arguments.trees:
        modes, drafters = ("sync",), ("trees", "decoys")
    with engine_pool() as pool:
        stock = pool.submit(run_parity, models.target, {}, **request)
        engines = {
            pool.submit(run_forerun, models, mode, drafter, **request, **defect): (mode, drafter)
            for mode, drafter in product(modes, drafters)
        }
        for engine in as_completed(engines):
            mode, drafter = engines[engine]
            for record in compare(stock.result(), engine.result()):
                yield {**record, "mode": mode, "drafter": drafter, **defect}
            if counts := engine.result()["trees"]:
                print(json.dumps({"drafter": drafter, **counts}), file=sys.stderr)


def distributions(folder: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The chi-square test for both drafters."""
    target, _ = distribution.make_models(folder)
    exact = exact_probabilities(target, distribution.PROMPT)
    defect = {"sabotage": arguments.sabotage} if arguments.sabotage else {}
    modes: tuple[Mode, ...] = arguments.mode or ("async",)
    drafters: tuple[Drafter, ...] = arguments.drafter or ("lookup", "draft_model")
    with engine_pool() as pool:
        engines = {
            pool.submit(distribution.sample, folder, mode, drafter, arguments.num_samples, **defect): (
                mode,
                drafter,
            )
            for mode, drafter in product(modes, drafters)
        }
        for engine in as_completed(engines):
            mode, drafter = engines[engine]
            found = engine.result()
            value = p_value(found["tokens"], exact)
            yield {
                "settings": "unseeded, vocabulary of 16",
                "mode": mode,
                "drafter": drafter,
                "num_samples": arguments.num_samples,
                "accepted": found["accepted"],
                "p_value": value,
                "identical": value > P_VALUE,
                **defect,
            }


def main() -> int:
    """Print the records; returns the exit code."""
    arguments = parse_arguments()
    all_identical = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = (
            distributions(folder, arguments)
            if arguments.distribution
            else matrix(make_models(folder), arguments)
        )
        for record in records:
            print(json.dumps(record), flush=True)
            all_identical &= record["identical"]
    return int(all_identical == bool(arguments.sabotage))


if __name__ == "__main__":
    sys.exit(main())
