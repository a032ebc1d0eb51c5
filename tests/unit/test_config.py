from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun import SpeculationConfig
from forerun.errors import ConfigurationError, UnknownKey


def test_every_key_has_a_default() -> None:
    config = SpeculationConfig()
    assert config.drafters == ("auto",)
    assert config.draft_model is None
    assert config.lenience == 1.0
    assert not config.share_outputs


def test_the_same_json_works_as_text_file_and_dict(tmp_path: Path) -> None:
    values = {"max_draft": 8, "verifier": "rejection"}
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
def test_an_unknown_key_raises_and_names_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(UnknownKey, match=f"unknown configuration key '{key}'; did you mean '{nearest}'"):
        SpeculationConfig(**{key: 1})


def test_an_unknown_key_without_a_near_match_raises_and_lists_all_keys() -> None:
    with pytest.raises(UnknownKey, match="there are drafters, draft_model, run_ahead, max_draft"):
        SpeculationConfig.parse({"zzz": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_draft": -1}, "max_draft: .*greater than or equal to 0; got -1"),
        ({"lenience": 0}, "lenience: .*greater than 0"),
        ({"verifier": "hope"}, "verifier: .*'auto', 'match', 'rejection' or 'block'"),
        ({"lenience": 0.5, "verifier": "block"}, "lenience .*got block"),
        ({"drafters": ()}, "drafters"),
    ],
)
def test_invalid_values_raise(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SpeculationConfig(**values)


def test_unreadable_configuration_files_raise(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigurationError, match="not JSON"):
        SpeculationConfig.parse(tmp_path / "broken.json")
    with pytest.raises(ConfigurationError, match="cannot read"):
        SpeculationConfig.parse(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="must be a JSON object; got list"):
        SpeculationConfig.parse(tmp_path / "list.json")


@pytest.mark.parametrize(("old", "new"), [("follow", "match"), ("reject", "rejection")])
def test_a_deprecated_verifier_name_is_replaced_with_a_warning(old: str, new: str) -> None:
    ways: list[Callable[[], SpeculationConfig]] = [
        lambda: SpeculationConfig(verifier=old),
        lambda: SpeculationConfig.parse(json.dumps({"verifier": old})),
        lambda: SpeculationConfig.model_validate({"verifier": old}),
    ]
    for make in ways:
        with pytest.warns(DeprecationWarning, match=f"'{old}'.*'{new}'"):
            config = make()
        assert config.verifier == new
        assert config == SpeculationConfig(verifier=new)


@pytest.mark.parametrize("name", ["auto", "match", "rejection", "block"])
def test_current_verifier_names_give_no_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SpeculationConfig(verifier=name).verifier == name
