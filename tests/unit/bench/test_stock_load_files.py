"""Result files of `vllm bench serve`, and `forerun bench compare`, which reads them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forerun.bench.client_results import DIGEST_LENGTH, ClientResult, read_client_results
from forerun.cli.main import app
from forerun.errors import UnreadableRecord

SAMPLE: dict[str, Any] = {
    "date": "20261118-211728",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": "forerun",
    "num_prompts": 2,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 30.518644,
    "completed": 2,
    "failed": 0,
    "total_input_tokens": 854,
    "total_output_tokens": 128,
    "request_throughput": 0.52427,
    "request_goodput": None,
    "output_throughput": 31.816617,
    "total_token_throughput": 210.428745,
    "output_lens": [64, 64],
    "ttfts": [6.7059, 6.7056],
    "itls": [[1.0323, 0.4921, 0.3469], [1.0322, 0.4921, 0.3469]],
    "generated_texts": [
        "```python\ndef decode(input, output, head",
        "The function `rgb_to_hls` takes a color ",
    ],
    "errors": ["", ""],
    "max_output_tokens_per_s": 56.0,
    "max_concurrent_requests": 10,
    "rtfx": 0.0,
    "spec_decode_acceptance_rate": 39.310345,
    "spec_decode_acceptance_length": 3.60274,
    "spec_decode_num_drafts": 219,
    "spec_decode_draft_tokens": 1450,
    "spec_decode_accepted_tokens": 570,
    "median_ttft_ms": 3371.672534,
    "p50_ttft_ms": 3371.672534,
    "p99_ttft_ms": 7580.902951,
    "median_tpot_ms": 114.476545,
    "p50_tpot_ms": 114.476545,
    "p99_tpot_ms": 343.573561,
    "median_itl_ms": 161.356999,
    "p50_itl_ms": 161.356999,
    "p99_itl_ms": 2162.612297,
    "median_e2el_ms": 11446.305623,
    "p50_e2el_ms": 11446.305623,
    "p99_e2el_ms": 26657.473785,
}
"""A file of vLLM 0.32's client against forerun, cut down to two of 16 requests, with the rates of all."""


def write_sample(file: Path, **changes: Any) -> Path:
    file.write_text(json.dumps(SAMPLE | changes))
    return file


def test_a_result_file_is_read(tmp_path: Path) -> None:
    (found,) = read_client_results(write_sample(tmp_path / "result.json"))
    assert (found.request_rate, found.max_concurrency, found.load) == (None, 8, "concurrency 8")
    assert (found.num_completed, found.num_failed, found.error) == (2, 0, "")
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert getattr(found, f"{name}_p50") == pytest.approx(SAMPLE[f"p50_{name}_ms"], abs=1e-3)
        assert getattr(found, f"{name}_p99") == pytest.approx(SAMPLE[f"p99_{name}_ms"], abs=1e-3)
    assert found.throughput == pytest.approx(SAMPLE["output_throughput"], abs=1e-3)
    assert found.request_throughput == pytest.approx(SAMPLE["request_throughput"], abs=1e-5)
    assert found.num_output_tokens == sum(SAMPLE["output_lens"])
    assert (found.num_draft_tokens, found.num_accepted_tokens) == (
        SAMPLE["spec_decode_draft_tokens"], SAMPLE["spec_decode_accepted_tokens"]
    )  # fmt: skip
    digests = [sha256(text.encode()).hexdigest()[:DIGEST_LENGTH] for text in SAMPLE["generated_texts"]]
    assert list(found.output_digests) == digests


def test_a_file_with_the_clients_default_metrics_is_read(tmp_path: Path) -> None:
    """Without --save-detailed, with p99 only, without e2el, and without speculation."""
    dropped = ("p50_", "spec_decode", "generated_texts", "errors", "itls", "ttfts")
    values = {
        key: value for key, value in SAMPLE.items() if not key.startswith(dropped) and "e2el" not in key
    }
    file = tmp_path / "result.json"
    file.write_text(json.dumps(values))
    (found,) = read_client_results(file)
    assert found.itl_p50 == pytest.approx(SAMPLE["median_itl_ms"], abs=1e-3)
    assert (found.e2el_p50, found.e2el_p99, found.num_draft_tokens, found.output_digests) == (
        None,
        None,
        0,
        (),
    )


@pytest.mark.parametrize(
    ("rate", "concurrency", "load"),
    [
        ("inf", None, "all requests at once"),
        (2.5, None, "2.5 requests/s"),
        (2.5, 8, "concurrency 8, 2.5 requests/s"),
    ],
)
def test_the_load_is_named(rate: float | str, concurrency: int | None, load: str, tmp_path: Path) -> None:
    file = write_sample(tmp_path / "result.json", request_rate=rate, max_concurrency=concurrency)
    assert read_client_results(file)[0].load == load


def test_a_file_with_appended_results_has_them_all(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("\n".join(json.dumps(SAMPLE | {"max_concurrency": each}) for each in (1, 8)))
    assert [each.max_concurrency for each in read_client_results(file)] == [1, 8]


def test_the_first_error_of_a_request_is_kept(tmp_path: Path) -> None:
    file = write_sample(tmp_path / "result.json", failed=1, errors=["", "refused", "late"])
    (found,) = read_client_results(file)
    assert (found.num_failed, found.error) == (1, "refused")


def test_a_result_is_reproduced_from_a_record(tmp_path: Path) -> None:
    (found,) = read_client_results(write_sample(tmp_path / "result.json"))
    row = json.loads(json.dumps(found.to_row()))
    assert ClientResult.from_row(row) == found
    assert ClientResult.from_row(row | {"steal_share": 0.1}) == found


@pytest.mark.parametrize("text", ["", "{}", "[]", "no JSON", '{"runs": []}'])
def test_another_file_is_rejected_with_its_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(UnreadableRecord, match=r"other.json .*vllm bench serve"):
        read_client_results(file)


def compare(stock: list[Path], other: list[Path], *flags: str) -> tuple[int, str]:
    arguments = [*map(str, stock), *(each for file in other for each in ("--with", str(file))), *flags]
    result = CliRunner().invoke(app, ["bench", "compare", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.output


def test_compare_pairs_files_of_the_same_load_in_their_order(tmp_path: Path) -> None:
    stock = [
        write_sample(
            tmp_path / f"stock-{load}-{turn}", max_concurrency=load, output_throughput=10.0 * (turn + 1)
        )
        for load in (1, 8)
        for turn in (0, 1)
    ]
    other = [
        write_sample(
            tmp_path / f"other-{load}-{turn}",
            max_concurrency=load,
            output_throughput=load * 10.0 * (turn + 1),
        )
        for load in (8, 1)
        for turn in (0, 1)
    ]
    code, output = compare(stock, other, "--json")
    assert code == 0
    one, eight = json.loads(output)
    assert (one["load"], eight["load"]) == ("concurrency 1", "concurrency 8")
    assert eight["ratios"]["throughput"] == {name: pytest.approx(8.0) for name in ("value", "low", "high")}
    assert one["ratios"]["throughput"]["value"] == pytest.approx(1.0)
    assert one["num_identical"] == one["num_outputs"] == 4


def test_compare_prints_a_row_per_load_and_metric(tmp_path: Path) -> None:
    stock = write_sample(tmp_path / "stock", output_throughput=10.0)
    other = write_sample(tmp_path / "other", output_throughput=12.5, generated_texts=["another", "text"])
    code, output = compare([stock], [other])
    assert code == 0
    rows = [line.split() for line in output.splitlines() if line.strip()]
    assert ["concurrency", "8", "throughput,", "tokens/s", "10.0", "12.5", "1.25"] in rows
    median = f"{SAMPLE['p50_itl_ms']:.1f}"
    assert ["ITL", "p50,", "ms", median, median, "1.00"] in rows
    assert ["identical", "output", "0/2"] in rows


def test_compare_needs_as_many_results_of_both_servers(tmp_path: Path) -> None:
    one, eight = (write_sample(tmp_path / str(each), max_concurrency=each) for each in (1, 8))
    code, output = compare([one, eight], [one])
    assert code == 1
    assert "got 1 results of the first server and 0 of the other with concurrency 8" in output


def test_compare_rejects_results_with_failed_requests(tmp_path: Path) -> None:
    file = write_sample(tmp_path / "result", failed=3)
    code, output = compare([file], [file])
    assert code == 1
    assert "6 requests failed" in output
