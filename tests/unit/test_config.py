from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun import SpeculationConfig
from forerun.errors import ConfigurationError, UnknownKey


def test_the_defaults_need_nothing() -> None:
    config = SpeculationConfig()
    assert config.drafters == ("auto",)
    assert config.draft_model is None
    assert config.lenience == 1.0
    assert not config.share_outputs


def test_the_same_json_works_as_text_file_and_dict(tmp_path: Path) -> None:
    values = {"max_draft": 8, "verifier": "reject"}
    file = tmp_path / "speculation.json"
    file.write_text(json.dumps(values))
    assert SpeculationConfig.parse(json.dumps(values)) == SpeculationConfig.parse(values)
    assert SpeculationConfig.parse(file) == SpeculationConfig.parse(str(file)) == SpeculationConfig(**values)


def test_a_config_survives_the_round_trip_through_json() -> None:
    config = SpeculationConfig(drafters=("ngram",), corpora=("a.fri",), lenience=0.5)
    assert SpeculationConfig.parse(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("key", "nearest"), [("max_drafts", "max_draft"), ("drafter", "drafters"), ("leniance", "lenience")]
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(UnknownKey, match=f"unknown configuration key '{key}'; did you mean '{nearest}'"):
        SpeculationConfig(**{key: 1})


def test_a_key_like_no_other_is_refused_with_all_known_ones() -> None:
    with pytest.raises(UnknownKey, match="there are drafters, draft_model, max_draft"):
        SpeculationConfig.parse({"zzz": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_draft": -1}, "max_draft: .*greater than or equal to 0; got -1"),
        ({"lenience": 0}, "lenience: .*greater than 0"),
        ({"verifier": "hope"}, "verifier: .*'auto', 'follow', 'reject' or 'block'"),
        ({"lenience": 0.5, "verifier": "block"}, "lenience goes with"),
        ({"drafters": ()}, "drafters"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SpeculationConfig(**values)


def test_files_that_are_not_json_say_so(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigurationError, match="not JSON"):
        SpeculationConfig.parse(tmp_path / "broken.json")
    with pytest.raises(ConfigurationError, match="cannot read"):
        SpeculationConfig.parse(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="must be a JSON object; got list"):
        SpeculationConfig.parse(tmp_path / "list.json")
