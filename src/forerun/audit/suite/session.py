"""What the checks share: requests to the servers, expected outputs, and the comparison of outputs.

The expected output of a greedy request is that of the baseline server. Without one it is built from
one-token completions of the candidate itself: the first token of a completion is never a draft token, so the
candidate, asked for one token at a time, decodes without speculation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.parity.near_ties import TieReferee
from forerun.audit.suite.finding import Finding, failed, passed, undecided
from forerun.errors import UnreadableAnswer
from forerun.servers.completions import END, Prompt, Token, parse_response
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

GREEDY: Final = SamplingParams(temperature=0.0)

NEAR_TIE_NATS: Final = 0.5
"""Without a reference model, rounding explains a difference between two tokens whose log-probabilities differ
by at most this much. Logits in bfloat16 are off by up to about 0.5.
"""

MAX_UNEXPLAINED: Final = 0.75
"""The largest share of outputs that may differ where nothing tells rounding from a fault."""

_NUM_LOGPROBS: Final = 20


@dataclass(frozen=True, slots=True)
class Output:
    """One completion of a server: tokens, text, why it ended, and its usage."""

    tokens: tuple[Token, ...]
    text: str
    finish_reason: str
    usage: Mapping[str, Any]
    prompt_ids: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the server returned."""
        return len([token for token in self.tokens if token != END])


@dataclass
class Session:
    """The servers of a suite. `prompts` are those of the greedy checks."""

    candidate: Endpoint
    baseline: Endpoint | None = None
    referee: TieReferee | None = None
    prompts: Sequence[Prompt] = ()
    concurrency: int = 16
    thorough: bool = False
    reference: Any = None
    _expected: dict[tuple[Any, ...], tuple[Token, ...]] = field(default_factory=dict)

    @property
    def can_expect(self) -> bool:
        """Whether greedy outputs can be predicted: by a baseline, or token by token."""
        return self.baseline is not None or self.candidate.dialect.accepts_token_ids

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        *,
        server: Endpoint | None = None,
        **extra: Any,
    ) -> Output:
        """A completion of the candidate, or of another server."""
        server = server or self.candidate
        body = {**self.body(prompt, max_tokens, sampling, server), **extra}
        return read_output(server.post("/completions", body), max_tokens)

    @staticmethod
    def body(prompt: Prompt, max_tokens: int, sampling: SamplingParams, server: Endpoint) -> dict[str, Any]:
        """The request for a completion."""
        dialect = server.dialect
        logprobs = {} if dialect.logprobs is None else {"logprobs": dialect.logprobs}
        return {
            "prompt": list(prompt.ids) if prompt.ids and dialect.accepts_token_ids else prompt.text,
            "max_tokens": max_tokens,
            **dialect.settings(sampling),
            **dialect.extra,
            **logprobs,
        }

    def expected(
        self, prompt: Prompt, max_tokens: int, sampling: SamplingParams = GREEDY
    ) -> tuple[Token, ...]:
        """The output of greedy decoding without speculation; remembered."""
        key = (prompt, max_tokens, repr(sampling))
        if key not in self._expected:
            if self.baseline is not None:
                output = self.generate(prompt, max_tokens, sampling, server=self.baseline)
                self._expected[key] = output.tokens
            else:
                self._expected[key] = self._token_by_token(prompt, max_tokens, sampling)
        return self._expected[key]

    def _token_by_token(self, prompt: Prompt, max_tokens: int, sampling: SamplingParams) -> tuple[Token, ...]:
        """The output of one-token completions of the candidate."""
        tokens: list[Token] = []
        ids = prompt.ids
        while len(tokens) < max_tokens:
            output = self.generate(Prompt(prompt.text, ids), 1, sampling)
            if not ids:
                ids = output.prompt_ids
            first = output.tokens[0] if output.tokens else END
            if first == END:
                return (*tokens, END)
            if not isinstance(first, int) or not ids:
                raise UnreadableAnswer("the server returns no token ids: give a baseline server")
            tokens.append(first)
            if output.finish_reason == "stop":  # after its end-of-sequence token
                return (*tokens, END)
            ids = (*ids, first)
        return tuple(tokens)

    def compare(self, pairs: Sequence[AnswerPair], what: str, same: str, *, rounding: bool = True) -> Finding:
        """Whether all pairs of outputs are identical up to rounding; without `rounding`, entirely.

        `what` names an output in the reason of a fault, `same` is the reason where there is none.
        """
        rows = [(pair, self._row(pair, rounding=rounding)) for pair in pairs if pair.position is not None]
        faults = [row for _, row in rows if row["finding"] == "difference"]
        if faults:
            return failed(f"{len(faults)} of {len(pairs)} {what} differ beyond rounding", faults)
        if unknown := [row for _, row in rows if row["finding"] == "unknown"]:
            reason = f"{len(unknown)} of {len(pairs)} {what} differ"
            if len(unknown) > MAX_UNEXPLAINED * len(pairs):
                return failed(f"{reason}, more than rounding is likely to explain", unknown)
            return undecided(f"{reason}; give --reference", unknown)
        if rows:
            return passed(f"{same}, up to {len(rows)} of {len(pairs)} that first differ at a near-tie")
        return passed(same)

    def _row(self, pair: AnswerPair, *, rounding: bool) -> dict[str, Any]:
        """The first difference of two outputs as evidence, with its classification."""
        at = pair.position
        assert at is not None
        expected, found = pair.differing_tokens()
        row: dict[str, Any] = {
            "prompt": pair.prompt.text or list(pair.prompt.ids),
            "position": at,
            "expected": expected,
            "found": found,
            "expected_output": list(pair.baseline),
            "output": list(pair.candidate),
        }
        if not rounding:
            return row | {"finding": "difference"}
        gap, bound = self._gap(pair, at, (expected, found))
        if gap is None:
            return row | {"finding": "unknown"}
        finding = "near-tie" if gap <= bound else "difference"
        return row | {"gap": gap, "near_tie_up_to": bound, "finding": finding}

    def _gap(self, pair: AnswerPair, at: int, tokens: tuple[Token, Token]) -> tuple[float | None, float]:
        """How much likelier one token is than the other, and up to where rounding explains a difference."""
        if self.referee is not None and pair.prompt.ids:
            ruling = self.referee.classify(pair.prompt.ids, pair.baseline[:at], tokens, pair.sampling)
            return ruling.gap, ruling.bound
        server = self.baseline or self.candidate
        prefix = pair.baseline[:at]
        if not pair.prompt.ids or not server.dialect.accepts_token_ids or END in tokens:
            return None, NEAR_TIE_NATS
        changes_ratios = pair.sampling.repetition_penalty != 1
        if changes_ratios or not all(isinstance(token, int) for token in prefix):
            return None, NEAR_TIE_NATS
        ids = (*pair.prompt.ids, *(int(token) for token in prefix))
        (one,) = server.complete(Prompt(ids=ids), GREEDY, 1, num_logprobs=_NUM_LOGPROBS)
        likely = one.logprobs[0] if one.logprobs else {}
        if not likely:
            return None, NEAR_TIE_NATS
        lowest = min(likely.values())
        first, second = (
            likely.get(token, lowest) - _penalty(pair.sampling, prefix.count(token)) for token in tokens
        )
        return abs(first - second), NEAR_TIE_NATS

    def pair(
        self, prompt: Prompt, expected: Sequence[Token], output: Output, sampling: SamplingParams = GREEDY
    ) -> AnswerPair:
        """An expected output beside an output of the candidate."""
        ids = prompt.ids or output.prompt_ids
        return AnswerPair(Prompt(prompt.text, ids), sampling, tuple(expected), output.tokens)


def _penalty(sampling: SamplingParams, count: int) -> float:
    """What presence and frequency penalties subtract from the logit of a token with this count."""
    return sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count


def read_output(response: dict[str, Any], max_tokens: int) -> Output:
    """The only choice of a response."""
    (completion,) = parse_response(response, 1, max_tokens)
    choice = response["choices"][0]
    return Output(
        completion.tokens,
        str(choice.get("text") or ""),
        str(choice.get("finish_reason") or ""),
        response.get("usage") or {},
        completion.prompt_ids,
    )
