"""Whether verification waits for the GPU, from the counts in the log of `forerun serve`."""

from __future__ import annotations

from typing import Final

from forerun.engines.vllm.sync_debug import read_sync_counts
from forerun.selftest.checks import CheckVerdict, SelftestCheck, undecided

NAME: Final = "no host synchronization in verification"


def synchronization_check(log: str, *, has_cuda: bool) -> SelftestCheck:
    """The check, from the log of a server that ran with FORERUN_SYNC_DEBUG."""
    if not has_cuda:
        return SelftestCheck(NAME, CheckVerdict.NOT_APPLICABLE, "no CUDA device")
    counts = read_sync_counts(log)
    if counts is None or not counts.num_verifications:
        return undecided(NAME, "the worker logged no counts: no draft token was verified")
    if not counts.is_active:
        return undecided(NAME, "torch's sync debug mode did not notice a synchronization made on purpose")
    places = f": {', '.join(counts.places)}" if counts.places else ""
    return SelftestCheck(
        NAME,
        CheckVerdict.FAILED if counts.num_synchronizations else CheckVerdict.PASSED,
        f"at least {counts.num_synchronizations} in {counts.num_verifications} verifications{places}"
        if counts.num_synchronizations
        else f"none in {counts.num_verifications} verifications",
        details={
            "num_synchronizations": counts.num_synchronizations,
            "num_verifications": counts.num_verifications,
            "places": list(counts.places),
        },
    )
