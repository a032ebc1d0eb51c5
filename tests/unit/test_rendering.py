"""Report pages and inline figures: escaped text, colours of the reader's scheme."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forerun.rendering.html_page import figure, json_block, table, text_element, text_list, write_html_page
from forerun.rendering.palette import COLOURS, TEXT, light
from forerun.rendering.plots import add_legend, as_svg, new_axes, write_figure

MARKUP = "<b>&"


def test_text_is_escaped_everywhere(tmp_path: Path) -> None:
    body = [
        text_element("p", MARKUP),
        text_list([MARKUP]),
        table([text_element("th", MARKUP)], []),
        figure("", MARKUP),
        json_block({"key": MARKUP}),
    ]
    write_html_page(tmp_path / "page.html", MARKUP, body)
    page = (tmp_path / "page.html").read_text()
    assert MARKUP not in page
    assert page.count("&lt;b&gt;&amp;") == len(body) + 1


def test_every_colour_has_a_light_and_a_dark_value(tmp_path: Path) -> None:
    write_html_page(tmp_path / "page.html", "title", ["body"])
    page = (tmp_path / "page.html").read_text()
    start, dark = page.split("@media (prefers-color-scheme: dark)")
    for name, colour in COLOURS.items():
        assert f"--{name}: {colour.light}" in start
        assert f"--{name}: {colour.dark}" in dark
    assert "<script" not in page
    assert "http" not in page


def test_a_list_without_lines_is_left_out() -> None:
    assert text_list([]) == ""


def test_an_inline_figure_takes_its_colours_from_the_page() -> None:
    pytest.importorskip("matplotlib")

    def draw() -> object:
        drawn, axes = new_axes(2, 1)
        axes.plot([0, 1], color=light("green"), label="a label")
        axes.axvline(0.5, color=light(TEXT))
        add_legend(axes)
        return drawn

    svg = as_svg(draw)
    assert svg.startswith("<svg")
    assert ">a label</text>" in svg, "text stays text"
    assert "var(--green)" in svg
    assert "currentColor" in svg
    assert not any(colour.light in svg for colour in COLOURS.values())
    assert svg == as_svg(draw), "the same data give the same bytes"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_figure_is_written_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    write_figure(lambda: new_axes(2, 1)[0], tmp_path / f"figure.{suffix}")
    start = {"png": rb"\x89PNG", "svg": rb"<\?xml", "pdf": rb"%PDF"}[suffix]
    assert re.match(start, (tmp_path / f"figure.{suffix}").read_bytes())
