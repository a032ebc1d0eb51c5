"""`forerun replay --sources`: which sources the suffix drafter uses, and the recording that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forerun.bench.recorded_logits import RecordedLogits
    from forerun.types import Drafter

SOURCES: Final = ("suffix", "static", "recycled", "last-logits")


def parse_sources(given: str, drafter: str) -> tuple[str, ...]:
    """The sources in a comma-separated list; raises `BadParameter` for unknown ones."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for name in names:
        if name not in SOURCES:
            raise typer.BadParameter(f"unknown source {name!r}; expected {', '.join(SOURCES)}")
    if drafter != "suffix" and names != ("suffix",):
        raise typer.BadParameter(f"--sources applies to the suffix drafter; got --drafter {drafter}")
    return names


def read_recording(transcripts: Path, logits: Path | None, sources: Sequence[str]) -> RecordedLogits | None:
    """The recorded logits that these sources need; None if they need none."""
    if tuple(sources) == ("suffix",):
        return None
    from forerun.bench.recorded_logits import RecordedLogits

    file = logits or transcripts.with_suffix(".logits.npz")
    if not file.exists():
        raise typer.BadParameter(
            f"{', '.join(name for name in sources if name != 'suffix')} need recorded logits, and there is no"
            f" {file}: record them with scripts/record_logits.py, or use --sources suffix"
        )
    return RecordedLogits.read(file)


def make_suffix_drafter(
    sources: Sequence[str], recording: RecordedLogits, options: dict[str, Any]
) -> Drafter:
    """A suffix drafter with these sources."""
    from forerun.drafters.corpus import Corpus
    from forerun.drafters.successor_votes import VoteWeights
    from forerun.drafters.suffix import SuffixDrafter

    return SuffixDrafter(
        chain=options["chain"],
        share_outputs=options["share_outputs"],
        corpora=[Corpus(file) for file in options["corpora"]],
        static_table=recording.static_table if "static" in sources else None,
        weights=VoteWeights.of_sources(recycled="recycled" in sources, last_logits="last-logits" in sources),
        look_up="suffix" in sources,
    )
