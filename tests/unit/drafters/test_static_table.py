from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.drafters.static_table import StaticTable
from forerun.drafters.static_table_cache import load_static_table, table_path
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import ConfigurationError
from forerun.types import RequestView, TopTokens


def rows(last: list[int], first_successor: int) -> TopTokens:
    """A row per token of `last`, whose likeliest successors count up from a number."""
    contexts = np.array([[0, token] for token in last], dtype=np.int32)
    tokens = np.tile(np.arange(first_successor, first_successor + 8, dtype=np.int32), (len(last), 1))
    return TopTokens(contexts, tokens, np.tile(np.float32(2.0) ** -np.arange(1, 9), (len(last), 1)))


def test_an_interrupted_build_knows_its_missing_rows(tmp_path: Path) -> None:
    table = StaticTable(10)
    table.add(rows([1, 4], 2))
    table.save(tmp_path / "table.npz")
    loaded = StaticTable.load(tmp_path / "table.npz")
    assert loaded.missing.tolist() == [0, 2, 3, 5, 6, 7, 8, 9]
    assert (loaded.successors == table.successors).all()
    assert (loaded.codes == table.codes).all()
    assert not [*tmp_path.glob("tmp*")], "the file is written atomically"


def test_a_file_that_is_no_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "table.npz").write_bytes(b"no table")
    with pytest.raises(ConfigurationError, match="is not a static table"):
        StaticTable.load(tmp_path / "table.npz")


@pytest.mark.parametrize("damage", ["truncated", "shape", "dtype", "pickled"])
def test_a_damaged_or_crafted_table_is_an_error(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "table.npz"
    table = StaticTable(4)
    if damage == "shape":
        table.codes = table.codes[:1, :1]
    if damage == "dtype":
        table.successors = table.successors.astype(np.int64)
    if damage == "pickled":
        table.codes = np.array([object()], dtype=object)
    table.save(file)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ConfigurationError, match="is not a static table"):
        StaticTable.load(file)


def test_a_model_is_found_by_the_content_of_its_files(model: Path) -> None:
    assert load_static_table(model) is None
    file = table_path(model)
    assert file is not None
    StaticTable(4).save(file)
    assert load_static_table(model) is None, "incomplete tables are not used"
    table = StaticTable(4)
    table.add(rows([0, 1, 2, 3], 0))
    table.save(file)
    assert load_static_table(model) is not None
    renamed = model.rename(model.parent / "renamed")
    assert load_static_table(renamed) is not None
    weights = bytearray((renamed / "model.safetensors").read_bytes())
    weights[100] += 1
    (renamed / "model.safetensors").write_bytes(bytes(weights))
    assert load_static_table(renamed) is None, "fine-tuned weights have their own table"


def test_a_name_that_is_not_on_disk_has_no_table(model: Path) -> None:
    del model
    assert table_path("no-such-organization/no-such-model") is None
    assert load_static_table("not a repository name") is None


def test_the_table_proposes_where_the_text_has_no_match() -> None:
    table = StaticTable(50)
    table.add(rows([9], 20))
    table.add(rows([20], 30))
    (draft,) = SuffixDrafter(static_table=table).propose([RequestView("r", [1, 2, 9])], [12])
    paths = [[int(draft.tokens[node]) for node in draft.path(at)] for at in range(len(draft))]
    assert [20] in paths
    assert [20, 30] in paths
    (chain,) = SuffixDrafter(static_table=table, chain=True).propose([RequestView("r", [1, 2, 9])], [12])
    assert chain.tokens.tolist() == [20, 30]
