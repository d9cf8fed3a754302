"""PNG and SVG figures: pixels, labels and notes."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from glassformer.core.errors import UserError
from glassformer.inspection.maps import AttentionMaps
from glassformer.plotting.attention import (
    BYTE_STEPS,
    DARK_MASKED,
    DARK_SCALE,
    GRID_LINE,
    MASKED,
    SCALE,
    Fit,
    colours,
    draw,
    fit,
    from_bytes,
    paint,
    pool_maximum,
    to_bytes,
    to_oklab,
)
from glassformer.plotting.style import tick_positions, visible

from ..inspection.conftest import make_maps


def texts_in(figure: object) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]  # type: ignore[attr-defined]


def uniform(size: int) -> np.ndarray:
    return np.full((size, size), 1 / size)


@pytest.mark.parametrize(("scale", "masked", "sign"), [(SCALE, MASKED, -1), (DARK_SCALE, DARK_MASKED, 1)])
def test_equal_steps_of_a_scale_look_equal_and_only_get_darker_or_lighter(
    scale: tuple[str, ...], masked: np.ndarray, sign: int
) -> None:
    lab = to_oklab(colours(scale))
    steps = np.linalg.norm(lab[8:] - lab[:-8], axis=1)  # over 8 levels, so that rounding has no effect
    assert steps.max() / steps.min() < 1.25
    assert (sign * np.diff(lab[::4, 0]) > 0).all()
    assert not {tuple(colour) for colour in masked} & {tuple(colour) for colour in colours(scale)}


def test_pooling_keeps_a_needle() -> None:
    weights = np.zeros((1000, 1000))
    weights[617, 283] = 0.9
    panel = fit(1000, 1000, limit=150, largest_cell=20)
    pooled, _ = pool_maximum(weights, None, panel.row_factor, panel.column_factor)
    assert pooled.max() == 0.9
    image = paint(weights, None, panel)
    assert max(image.shape[:2]) <= 150
    expected = colours()[round(0.9 * 255)]
    assert (image[617 // 7, 283 // 7] == expected).all()
    assert (image == expected).all(-1).sum() == 1


def test_a_pooled_picture_says_so_and_one_that_is_not_does_not() -> None:
    assert any("the maximum of 5 × 5 weights" in text for text in texts_in(draw(make_maps(uniform(500)), 20)))
    assert not any("maximum" in text for text in texts_in(draw(make_maps(uniform(16)))))


def test_masked_cells_look_different_from_zero() -> None:
    weights, allowed = np.zeros((2, 2)), np.array([[True, False], [True, True]])
    image = paint(weights, allowed, Fit(2, 2, 1, 1, 12, 12))
    masked = {tuple(colour) for colour in image[:12, 12:].reshape(-1, 3)}
    assert masked == {tuple(colour) for colour in MASKED}
    assert {tuple(colour) for colour in image[12:].reshape(-1, 3)} == {tuple(colours()[0])}
    assert not masked & {tuple(colour) for colour in colours()}


def test_a_block_is_masked_only_if_all_of_it_is() -> None:
    weights = np.zeros((4, 4))
    weights[1, 1] = 0.7
    allowed = np.zeros((4, 4), dtype=bool)
    allowed[1, 1] = True
    pooled, may = pool_maximum(weights, allowed, 2, 2)
    assert may is not None
    np.testing.assert_array_equal(may, [[True, False], [False, False]])
    assert pooled[0, 0] == 0.7


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (16, 16), (5, 9), (3, 1000), (1000, 4), (999, 1001)])
def test_a_panel_keeps_within_its_limit_with_whole_pixels_a_cell(queries: int, keys: int) -> None:
    panel = fit(queries, keys, limit=300, largest_cell=60)
    assert 0 < panel.height <= 300 and 0 < panel.width <= 300
    image = paint(np.zeros((queries, keys)), None, panel)
    assert image.shape == (panel.height, panel.width, 3)


def test_large_cells_have_a_hairline_between_them_and_keep_their_colour() -> None:
    image = paint(np.eye(3), None, Fit(3, 3, 1, 1, 20, 20))
    assert (image[19] == GRID_LINE).all() and (image[:, 39] == GRID_LINE).all()
    assert (image[5, 5] == colours()[255]).all() and (image[5, 25] == colours()[0]).all()
    assert (image[59, 59] == colours()[255]).all()


def test_bytes_keep_the_order_and_most_of_the_value() -> None:
    weights = np.linspace(0, 1, 5001).astype(np.float32)
    levels = to_bytes(weights, None)
    assert (np.diff(levels.astype(int)) >= 0).all() and levels.min() == 1
    assert np.abs(from_bytes(levels) - weights).max() <= 1 / BYTE_STEPS
    assert np.abs(from_bytes(levels) - weights)[weights < 0.01].max() < 0.0005
    assert to_bytes(weights[:2], np.array([True, False])).tolist() == [1, 0]


def test_tokens_label_the_axes_while_they_can_be_read() -> None:
    assert {"q0", "q15", "k15", "head 0", "layer 0"} <= set(texts_in(draw(make_maps(uniform(16)))))
    texts = texts_in(draw(make_maps(uniform(400))))
    assert "q0" not in texts and {"0", "100", "300"} <= set(texts)


def test_title_caption_and_checks_are_drawn() -> None:
    maps = make_maps(uniform(4), run="a run", checkpoint="step-7", input="3 1 4", output="4 1 3")
    texts = texts_in(draw(maps))
    assert "a run · step-7" in texts and "3 1 4   →   4 1 3" in texts
    assert "Attention shows where a head read, not why the model answered." in texts
    assert any(text.startswith("✓ each row sums to 1") for text in texts)
    assert any("largest weight 0.25" in text for text in texts)


def test_text_of_any_kind_can_be_drawn(recwarn: pytest.WarningsRecorder) -> None:
    tokens = ["$x$", "\n", " ", "中", "\x00", "a" * 60, "$\\frac{", "\ud800"]
    maps = make_maps(uniform(8), run="$\\alpha", input="$" * 9 + "\n" * 3 + "x " * 5000, output="中" * 50)
    maps["encoder"].keys[:] = maps["encoder"].queries[:] = tokens
    assert len(maps._repr_png_()) > 1000
    assert [str(warning.message) for warning in recwarn] == []


def test_visible_tokens() -> None:
    assert [visible(token) for token in (" the", "\n", "", "a\tb", "\x07")] == [
        "␣the",
        "↵",
        "∅",
        "a⇥b",
        "U+0007",
    ]
    assert visible("internationalisation") == "international…"


def test_ticks_are_round_and_never_none() -> None:
    assert tick_positions(0, 100, 7) == list(range(0, 100, 10))
    assert tick_positions(101, 3, 50) == [101]
    assert tick_positions(0, 1000, 130)[:3] == [0, 200, 400]


def test_svg_is_one_image_of_its_own(tmp_path: Path) -> None:
    make_maps(uniform(6), run="<&>").save(tmp_path / "map.svg")
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
    assert any(link.startswith("data:image/png") for link in links)
    assert all(link.startswith(("data:", "#")) for link in links)


def test_the_same_maps_make_the_same_files(tmp_path: Path) -> None:
    for ending in ("png", "svg", "html"):
        contents = []
        for name in ("one", "two"):
            make_maps(uniform(6), run="x").save(tmp_path / f"{name}.{ending}")
            contents.append((tmp_path / f"{name}.{ending}").read_bytes())
        assert contents[0] == contents[1], ending


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules
    make_maps(uniform(6)).save(tmp_path / "map.png")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder"):
        make_maps(uniform(3)).save(tmp_path / "nowhere" / "map.png")
    with pytest.raises(UserError, match=r"did you mean '\.png'"):
        make_maps(uniform(3)).save(tmp_path / "map.pgn")
    assert list(tmp_path.iterdir()) == []


def extents(figure: object) -> dict[str, tuple[float, float, float, float]]:
    """Return left, right, bottom and top of each text of a figure, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[arg-type]
    texts = figure.axes[0].texts  # type: ignore[attr-defined]
    boxes = {text.get_text(): text.get_window_extent(renderer) for text in texts}
    return {name: (box.x0, box.x1, box.y0, box.y1) for name, box in boxes.items()}


def test_text_under_a_small_map_stays_on_the_page_and_below_the_colour_bar() -> None:
    warning = "the model was trained on sequences of 100 tokens, not of 2; " * 3
    figure = draw(make_maps(uniform(2), np.tri(2, dtype=bool), run="reversal-1", warning=warning))
    found = extents(figure)
    width, _ = figure.canvas.get_width_height()
    assert all(left >= 0 and right <= width for left, right, _, _ in found.values())
    lowest = min(found[name][2] for name in ("0", "masked", "▸ largest"))
    footer = [name for name in found if name.startswith(("Warning", "Attention shows", "✓"))]
    assert len(footer) == 4 and all(found[name][3] < lowest for name in footer)


def test_a_warning_is_drawn_and_part_of_every_file(tmp_path: Path) -> None:
    warning = "the model was trained on sequences of 100 tokens, not of 3"
    maps = make_maps(uniform(3), run="reversal-1", warning=warning)
    assert f"Warning: {warning}" in " ".join(texts_in(draw(maps)))
    for name in ("map.png", "map.svg", "map.html", "map.npz"):
        maps.save(tmp_path / name)
    assert warning.encode() in (tmp_path / "map.png").read_bytes()
    assert warning in (tmp_path / "map.svg").read_text()
    assert warning in (tmp_path / "map.html").read_text()
    assert AttentionMaps.load(tmp_path / "map.npz").warning == warning
