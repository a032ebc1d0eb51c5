"""Names, types and help texts of the exported metrics, and the names that they had before.

Prometheus appends `_total` to the names of counters.
"""

from __future__ import annotations

from typing import Final

REQUEST_STEPS: Final = "forerun:request_steps"
UNDRAFTED_STEPS: Final = "forerun:undrafted_request_steps"
TOKENS: Final = "forerun:tokens"
TRACKED_REQUESTS: Final = "forerun:tracked_requests"
DRAFT_TOKENS: Final = "forerun:draft_tokens"
ACCEPTED_TOKENS: Final = "forerun:accepted_tokens"
DRAFT_SECONDS: Final = "forerun:draft_seconds"
DRAFTER_ERRORS: Final = "forerun:drafter_errors"
DRAFT_LENGTH: Final = "forerun:draft_length"
PREDICTED_GOODPUT: Final = "forerun:predicted_goodput"
MEASURED_GOODPUT: Final = "forerun:measured_goodput"
BASELINE_GOODPUT: Final = "forerun:baseline_goodput"
STEP_SECONDS: Final = "forerun:step_seconds"

GAUGES: Final = frozenset(
    {
        TRACKED_REQUESTS,
        DRAFT_LENGTH,
        PREDICTED_GOODPUT,
        MEASURED_GOODPUT,
        BASELINE_GOODPUT,
        STEP_SECONDS,
    }
)
"""All other metrics are counters."""

HELP: Final = {
    REQUEST_STEPS: "Decode steps, counted once per request in the step.",
    UNDRAFTED_STEPS: "Request steps that verified no draft token.",
    TOKENS: "Tokens generated in request steps, before stop conditions truncate the output.",
    TRACKED_REQUESTS: "Requests with live speculation state.",
    DRAFT_TOKENS: "Draft tokens verified by the target model, by drafter and depth.",
    ACCEPTED_TOKENS: "Draft tokens accepted, by drafter and depth.",
    DRAFT_SECONDS: "Seconds spent drafting, by drafter.",
    DRAFTER_ERRORS: "Drafter errors, by drafter; errors cost draft tokens, never output.",
    DRAFT_LENGTH: "Draft tokens per request and step, by drafter; moving average.",
    PREDICTED_GOODPUT: "Predicted tokens/s of steps that verify tokens of this drafter; moving average.",
    MEASURED_GOODPUT: "Measured tokens/s of the same steps; moving average.",
    BASELINE_GOODPUT: "Estimated tokens/s of the same steps without draft tokens; moving average.",
    STEP_SECONDS: "Estimated seconds of a forward pass, by number of rows and whether any request samples.",
}

RENAMED: Final = {
    UNDRAFTED_STEPS: "forerun:plain_request_steps",
    TRACKED_REQUESTS: "forerun:known_requests",
    DRAFT_TOKENS: "forerun:proposed_tokens",
    DRAFT_LENGTH: "forerun:chosen_tokens",
    BASELINE_GOODPUT: "forerun:plain_goodput",
    STEP_SECONDS: "forerun:pass_seconds",
}
"""Deprecated names, which are exported too."""

RENAMED_LABELS: Final = {"sampled": "drawn"}
"""Labels of the metrics in `RENAMED`, and their names under the deprecated metric name."""


def deprecation(name: str) -> str:
    """The help text of the deprecated metric that a metric in `RENAMED` replaces."""
    return f"Deprecated: use {name if name in GAUGES else f'{name}_total'}."
