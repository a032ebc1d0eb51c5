"""Checks of sampling settings, log-probabilities and seeds under speculation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.suite.finding import Finding, failed, not_applicable, passed, undecided
from forerun.audit.suite.output_checks import NUM_TOKENS
from forerun.audit.suite.session import GREEDY, Output, Session
from forerun.errors import RequestRefused
from forerun.servers.completions import END, Prompt
from forerun.servers.concurrency import map_concurrent
from forerun.types import SamplingParams

HOT: Final = SamplingParams(temperature=1.5)
MAX_LOGPROB_ERROR: Final = 0.5
"""Rounding in bfloat16 changes log-probabilities of likely tokens by less, in nats."""

MAX_SEEDED_DIFFERENCES: Final = 0.25
"""The largest share of outputs with seeds that rounding in bfloat16 may change."""

_BIAS: Final = 100.0


def truncation(session: Session) -> Finding:
    """With top-k 1, or top-p close to 0, sampling is greedy at every position, drafted or not."""
    settings = {"top_k 1": replace(HOT, top_k=1), "top_p 1e-6": replace(HOT, top_p=1e-6)}
    return _collapsed(session, settings)


def min_p(session: Session) -> Finding:
    """With min-p 1, sampling is greedy at every position, drafted or not."""
    return _collapsed(session, {"min_p 1": replace(HOT, min_p=1.0)})


def _collapsed(session: Session, settings: dict[str, SamplingParams]) -> Finding:
    """Whether these settings, which keep the likeliest token alone, sample greedy output."""
    pairs, refused = [], []
    for name, sampling in settings.items():
        try:
            for prompt in session.prompts:
                greedy = session.generate(prompt, NUM_TOKENS)
                output = session.generate(prompt, NUM_TOKENS, sampling)
                pairs.append(session.pair(prompt, greedy.tokens, output))
        except RequestRefused as error:
            refused.append(f"{name} is refused: {error}")
    if not pairs:
        return not_applicable("; ".join(refused))
    names = ", ".join(settings)
    return session.compare(pairs, "outputs", f"{len(pairs)} outputs with {names} equal greedy output")


def logit_bias(session: Session) -> Finding:
    """A bias of -100 removes a token from the output, and of 100 makes it the only one, at every position."""
    faults: list[dict[str, Any]] = []
    try:
        for prompt in session.prompts:
            output = session.generate(prompt, NUM_TOKENS).tokens
            tokens = [token for token in dict.fromkeys(output) if isinstance(token, int)][:4]
            if not tokens:
                return not_applicable("the server returns no token ids, which a logit bias needs")
            faults += _bias_faults(session, prompt, tokens)
    except RequestRefused as error:
        return not_applicable(f"logit_bias is refused: {error}")
    num = 2 * len(session.prompts)
    if faults:
        return failed(f"{len(faults)} of {num} outputs ignore a logit bias", faults)
    return passed(f"{num} outputs follow their logit biases")


def _bias_faults(session: Session, prompt: Prompt, tokens: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Outputs that ignore a bias against these tokens, or for the first of them."""
    allowed = {END, tokens[0]}
    prompt_as_json = prompt.text or list(prompt.ids)
    banned = {str(token): -_BIAS for token in tokens}
    for bias, is_forced in ((banned, False), ({str(tokens[0]): _BIAS}, True)):
        found = session.generate(prompt, NUM_TOKENS, logit_bias=bias).tokens
        wrong = [
            at for at, token in enumerate(found) if (token not in allowed if is_forced else token in tokens)
        ]
        if wrong:
            row = {"prompt": prompt_as_json, "logit_bias": bias, "position": wrong[0]}
            yield row | {"found": found[wrong[0]]}


def penalties(session: Session) -> Finding:
    """Penalties count accepted draft tokens like any others: the output equals that without speculation."""
    settings = {"repetition_penalty": replace(GREEDY, repetition_penalty=1.3)}
    if session.baseline is not None:
        settings["presence_penalty"] = replace(GREEDY, presence_penalty=1.5)
        settings["frequency_penalty"] = replace(GREEDY, frequency_penalty=1.0)
    elif not session.can_expect:
        return not_applicable("without token ids, penalties need --baseline")
    pairs = []
    try:
        for sampling in settings.values():
            for prompt in session.prompts:
                output = session.generate(prompt, NUM_TOKENS, sampling)
                expected = session.expected(prompt, NUM_TOKENS, sampling)
                pairs.append(session.pair(prompt, expected, output, sampling))
    except RequestRefused as error:
        return not_applicable(f"penalties are refused: {error}")
    names = ", ".join(settings)
    return session.compare(pairs, "outputs", f"{len(pairs)} outputs with {names} identical")


def logprobs(session: Session) -> Finding:
    """Log-probabilities at drafted positions are those of the same positions without speculation."""
    if session.baseline is None and not session.candidate.dialect.accepts_token_ids:
        return not_applicable("without token ids, log-probabilities need --baseline")
    rows: list[dict[str, Any]] = []
    for prompt in session.prompts[:2]:
        (output,) = session.candidate.complete(prompt, GREEDY, NUM_TOKENS // 2, num_logprobs=5)
        ids = prompt.ids or output.prompt_ids
        tokens = [token for token in output.tokens if isinstance(token, int)]
        if len(output.logprobs) < len(tokens) or not tokens or not ids:
            return not_applicable("the server returns no log-probabilities, or no token ids")
        for at, token in enumerate(tokens):
            alone = _logprob_alone(session, (*ids, *tokens[:at]), token)
            if alone is not None:
                found = output.logprobs[at].get(token)
                rows.append({"position": at, "token": token, "expected": alone, "found": found})
    faults = [row for row in rows if row["found"] is None or _error(row) > MAX_LOGPROB_ERROR]
    if faults:
        return failed(f"{len(faults)} of {len(rows)} log-probabilities are wrong", faults)
    largest = max(map(_error, rows), default=0.0)
    return passed(f"{len(rows)} log-probabilities agree, the largest difference is {largest:.2g}")


def _logprob_alone(session: Session, prefix: tuple[int, ...], token: int) -> float | None:
    """The log-probability of a token in a one-token completion, which no draft token precedes."""
    server = session.baseline or session.candidate
    (alone,) = server.complete(Prompt(ids=prefix), GREEDY, 1, num_logprobs=5)
    return alone.logprobs[0].get(token) if alone.logprobs else None


def _error(row: dict[str, Any]) -> float:
    return abs(float(row["found"]) - float(row["expected"]))


def seeds(session: Session) -> Finding:
    """The same seed gives the same output, also beside requests with other seeds; other seeds give other
    output.
    """
    prompts = session.prompts[:2]
    requests = [(prompt, SamplingParams(seed=seed)) for prompt in prompts for seed in range(4)]

    def send(request: tuple[Prompt, SamplingParams]) -> Output:
        return session.generate(request[0], NUM_TOKENS, request[1])

    alone, again = [*map(send, requests)], [*map(send, requests)]
    beside = [*map_concurrent(send, requests, len(requests))]
    if len({output.tokens for output in alone}) == len(prompts):
        return failed("different seeds give the same output", [])
    pairs = [
        session.pair(prompt, first.tokens, other, sampling)
        for (prompt, sampling), first, *others in zip(requests, alone, again, beside, strict=True)
        for other in others
    ]
    return _seeded(pairs, "when they are repeated", "give the same output again, alone and beside others")


def seeds_as_without(session: Session) -> Finding:
    """The same seed gives the output of the server without speculation."""
    if session.baseline is None:
        return not_applicable("comparing seeds needs --baseline")
    pairs = []
    for prompt in session.prompts:
        for sampling in (SamplingParams(seed=seed) for seed in range(4)):
            expected = session.generate(prompt, NUM_TOKENS, sampling, server=session.baseline)
            output = session.generate(prompt, NUM_TOKENS, sampling)
            pairs.append(session.pair(prompt, expected.tokens, output, sampling))
    return _seeded(pairs, "from those of the baseline", "equal those of the baseline")


def _seeded(pairs: Sequence[AnswerPair], differ: str, agree: str) -> Finding:
    """Whether outputs with seeds agree; rounding in bfloat16 can cause a few differences."""
    rows = [
        {
            "prompt": pair.prompt.text,
            "seed": pair.sampling.seed,
            "position": pair.position,
            "expected_output": list(pair.baseline),
            "output": list(pair.candidate),
        }
        for pair in pairs
        if pair.position is not None
    ]
    if not rows:
        return passed(f"{len(pairs)} outputs with seeds {agree}")
    reason = f"{len(rows)} of {len(pairs)} outputs with seeds differ {differ}"
    if len(rows) > MAX_SEEDED_DIFFERENCES * len(pairs):
        return failed(reason, rows)
    return undecided(f"{reason}; in bfloat16 rounding can cause this", rows)
