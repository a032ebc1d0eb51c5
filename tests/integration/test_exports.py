"""The names that the package exports, which load the engines that they need."""

from __future__ import annotations

import forerun


def test_every_exported_name_exists_once() -> None:  # ruff checks the order
    assert len(set(forerun.__all__)) == len(forerun.__all__)
    assert all(hasattr(forerun, name) for name in forerun.__all__)
