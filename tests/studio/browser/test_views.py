"""Each view of the studio, driven as a user would."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from glassformer.runs.folder import RunFolder
from glassformer.storage.files import ChecksummedFolder, json_bytes

from .conftest import PATIENCE_SECONDS, OpenPage, Page


def export_bytes(page: Page, panel: str, ending: str) -> bytes:
    """Download a file from a panel's export menu."""
    menu = page.page.locator(f"section.panel[aria-label='{panel}'] details.menu").first
    menu.locator("summary").click()
    with page.page.expect_download(timeout=1000 * PATIENCE_SECONDS) as download:
        menu.locator(f"[data-format={ending}]").click()
    return Path(download.value.path()).read_bytes()


def check_exports(page: Page, panel: str) -> list[list[str]]:
    """Check all three export files; return the rows of the CSV."""
    assert Image.open(io.BytesIO(export_bytes(page, panel, "png"))).format == "PNG"
    assert ElementTree.fromstring(export_bytes(page, panel, "svg")).tag.endswith("svg")
    return list(csv.reader(io.StringIO(export_bytes(page, panel, "csv").decode())))


def command_of(page: Page, panel: str) -> str:
    return str(page.page.locator(f"section.panel[aria-label='{panel}'] .command code").first.inner_text())


def test_runs_are_listed_with_curves_and_differences(open_page: OpenPage) -> None:
    page = open_page("#/runs?select=watched,other,writing")
    page.see("table.runs tr[data-run=watched] .status-done", "done")
    page.see("table.runs tr[data-run=writing]")
    assert "%" in page.see("tr[data-run=watched] td strong").inner_text()
    points = page.until("() => Number(document.querySelector('.chart')?.dataset.points ?? 0)")
    assert page.see(".legend", "watched")
    page.see(".differences", "model.position.kind")
    rows = check_exports(page, "Curves")
    assert rows[0] == ["series", "step", "value"] and len(rows) > points
    assert ["watched", "done"] in [row[:2] for row in check_exports(page, "All runs")]
    assert check_exports(page, "Differences")[0] == ["task", "option", "watched", "other"]
    assert command_of(page, "All runs").startswith("glassformer runs")
    # Runs of one task are a group, and only their options are compared.
    assert page.page.locator("tbody[data-task=reversal] tr[data-run]").count() == 2
    assert page.see("tbody[data-task=arithmetic] .task-head", "arithmetic").is_visible()
    assert page.page.locator(".differences").count() == 1
    assert "task.kind" not in page.see(".differences").inner_text()
    page.see("tr[data-run=other] .chip", "position rotary")
    page.see("tr[data-run=watched] .chip", "position sinusoidal")
    # One run less, a log axis, no smoothing: the address stores them.
    page.page.locator("tr[data-run=writing] input").uncheck()
    page.until(f"() => Number(document.querySelector('.chart').dataset.points ?? 0) < {points}")
    page.page.get_by_label("Log axis").check()
    page.page.get_by_label("Smoothing").fill("0")
    page.until("() => /log=1/.test(location.hash) && /smooth=0&?/.test(location.hash)")
    page.page.reload()
    page.until("() => document.querySelector('.chart .ytick')")
    assert page.page.get_by_label("Log axis").is_checked()
    assert not page.page.locator("tr[data-run=writing] input").is_checked()


def test_curves_of_few_points_are_not_smoothed(open_page: OpenPage, runs: Path) -> None:
    """The smoothed line lags: the loss of a short run was drawn at 0.47 where it was 0.006."""
    shutil.copytree(runs / "watched", runs / "long")
    try:
        events = runs / "long" / "events.jsonl"
        (first, *_) = [
            line for line in events.read_text().splitlines() if json.loads(line)["event"] == "step"
        ]
        last = json.loads(events.read_text().splitlines()[-1]).get("step", 0)
        more = [json.dumps(json.loads(first) | {"step": last + step}) for step in range(1, 61)]
        events.write_text(events.read_text() + "".join(f"{line}\n" for line in more))
        page = open_page("#/runs?select=watched")
        for name, strength, words in (
            ("watched", "0", "line: training · rings"),
            ("long", "0.5", "smoothed above the raw values"),
        ):
            page.open(f"#/runs?select={name}")
            page.see(f".legend [data-run={name}]")
            page.see(".legend", words)
            assert page.page.get_by_label("Smoothing").input_value() == strength
            assert "smooth=" not in page.page.url
        page.open("#/runs?select=watched&smooth=0.9")
        page.see(".legend", "smoothed above the raw values")
    finally:
        shutil.rmtree(runs / "long")


def test_runs_are_found_by_name_task_status_and_option(open_page: OpenPage) -> None:
    page = open_page("#/runs")
    page.see("tr[data-run=writing]")
    shown = "() => [...document.querySelectorAll('tr[data-run]')].map((row) => row.dataset.run).sort().join()"
    assert page.page.evaluate(shown) == "other,watched,writing"
    for text, found in (
        ("wat", "watched"),
        ("arith", "writing"),
        ("position=rotary", "other"),
        ("num_layers=2 done", "watched"),
        ("crashed", ""),
    ):
        page.page.get_by_label("Search").fill(text)
        page.until(f"{shown} === {found!r}")
    page.see("table.runs", "No run matches")
    page.page.get_by_label("Search").fill("")
    page.page.get_by_label("Task").select_option("reversal")
    page.see(".run-filter", "2 of 3 runs")
    page.until("() => location.hash.includes('task=reversal')")
    page.page.reload()
    page.see("tr[data-run=watched]")
    assert page.page.evaluate(shown) == "other,watched"


def test_a_colour_belongs_to_the_run_not_to_its_place(open_page: OpenPage) -> None:
    def colour(page: Page, name: str) -> str:
        page.until(f"() => document.querySelector('.legend li[data-run={name}]')")
        script = f"() => document.querySelector('.legend li[data-run={name}] .swatch').dataset.colour"
        return str(page.page.evaluate(script))

    page = open_page("#/runs?select=watched,other,writing")
    colours = {name: colour(page, name) for name in ("watched", "other", "writing")}
    assert len(set(colours.values())) == 3
    page.open("#/runs?select=writing")
    page.page.reload()
    assert colour(page, "writing") == colours["writing"]
    page.open("#/run/other")
    assert colour(page, "other") == colours["other"]


def test_a_run_shows_its_results_and_options(open_page: OpenPage) -> None:
    page = open_page("#/runs")
    page.see("table.runs a", "watched").click()
    page.see("section.panel[aria-label=Results]", "accuracy")
    page.see("table.options", "inspection.probe_heads")
    page.page.get_by_label("Filter the options").fill("num_heads")
    assert page.page.locator("table.options tr:visible").count() == 1
    assert ["model.num_heads", "2"] in check_exports(page, "Options")


def test_a_run_shows_its_warnings_beside_its_results(open_page: OpenPage, runs: Path) -> None:
    folder, warning = RunFolder(runs / "warned"), "WARNING: test accuracy 0.1 <b>is low</b>"
    shutil.copytree(runs / "other", folder.path)
    try:
        results = folder.results() | {"warnings": [warning]}
        ChecksummedFolder(folder.path).write({"results.json": json_bytes(results)})
        page = open_page("#/run/warned")
        assert page.see("section.panel[aria-label='Warnings'] li.alarm").inner_text() == warning
        page.see("section.panel[aria-label='Results']", "test")
    finally:
        shutil.rmtree(folder.path)


def test_the_inspector_shows_all_sites_and_tests_a_cell(open_page: OpenPage) -> None:
    page = open_page("#/inspect/writing?site=cross&query=0&key=1")
    page.see(".map-site h2", "cross")
    assert page.page.locator(".map-site").count() == 3
    page.see(".map-readout", "× uniform")
    page.see(".caption", "not why the model answered")
    page.see(".checks", "each row sums to 1")
    for kind in ("edge", "head", "token"):
        page.see(f"[data-test={kind}]").click()
    page.until("() => document.querySelectorAll('.effect table').length === 3")
    assert page.page.locator(".effect .trust-cause").count() == 3
    page.see(".effect", "loss")
    page.see("button", "Measure over").click()
    page.until("() => document.querySelectorAll('.bar-other').length > 0")  # the untrained control
    rows = check_exports(page, "Map")
    assert rows[0][0] == "site" and {row[0] for row in rows[1:]} == {"cross"}
    assert check_exports(page, "Test this")[0][0] == "intervention"
    numbers = check_exports(page, "Statistics of this head")
    assert numbers[0] == ["statistic", "value", "uniform", "untrained", "value-weighted"]
    assert all(row[1] for row in numbers[1:]) and "value share" in [row[0] for row in numbers]
    assert command_of(page, "Map").startswith("glassformer attention")


def test_a_cell_is_ablated_in_many_examples_and_a_test_can_be_stopped(open_page: OpenPage) -> None:
    page = open_page("#/inspect/watched?query=0&key=1")
    page.see(".map-readout", "× uniform")
    page.page.get_by_label("Ablate a cell in").select_option(index=1)
    page.see("[data-test=edge]").click()
    page.see(".effect", "examples · right: 95 % confidence interval of the change")
    assert page.page.locator(".effect table").count() == 2  # one for this input, one for the examples
    page.until("() => location.hash.includes('over=64')")
    page.page.route("**/intervene", lambda route: None)  # the reply never comes
    page.see("[data-test=head]").click()
    page.see(".effect .working button", "Stop").click()
    page.until("() => !document.querySelector('.effect .working')")
    assert page.page.locator(".effect").count() == 1


def test_hints_are_shown_as_hints(open_page: OpenPage) -> None:
    page = open_page("#/inspect/writing?site=cross")
    page.see("[data-hint=lens]").click()
    page.see("table.lens td.is-output")
    page.until("() => location.hash.includes('hint=lens')")
    rows = check_exports(page, "Logit lens")
    assert rows[0] == ["position", "token", "layers", "rank", "guess", "probability"]
    assert " --lens " in command_of(page, "Logit lens")
    page.see("[data-hint=rollout]").click()
    page.see("section[aria-label='Attention rollout'] h2", "rollout (a hint)")
    page.until("() => document.querySelector('.hint .map-canvas')?.dataset.map")
    assert not page.page.locator("table.lens").count()
    rolled = check_exports(page, "Attention rollout")
    assert {row[0] for row in rolled[1:]} == {"cross"}
    assert " --rollout " in command_of(page, "Attention rollout")
    assert page.page.locator(".hint .trust-hint").count() == 1
    page.page.reload()
    page.until("() => document.querySelector('.hint .map-canvas')?.dataset.map")  # the address has stored it
    page.see("[data-hint=rollout]").click()
    page.until("() => !document.querySelector('.hint .panel')")


def test_the_probe_walks_through_the_decoding(open_page: OpenPage) -> None:
    page = open_page("#/probe/writing?decoding=beam")
    page.see(".output .best")
    page.see(".beam-tree g.is-chosen")
    assert page.page.locator(".beam-tree g.is-dropped").count() > 0
    assert page.page.locator(".step-chip").count() > 1
    page.see(".strip canvas")
    page.page.locator("body").press("ArrowRight")
    page.see("p[role=status]", "step 2 of")
    page.until("() => location.hash.includes('step=1')")
    probabilities = [float(row[2]) for row in check_exports(page, "Step by step")[1:] if row[0] == "0"]
    assert 0 < sum(probabilities) <= 1.0001 and probabilities == sorted(probabilities, reverse=True)
    assert check_exports(page, "Beam search")[0][0] == "node"
    # A dropped node can be inspected as well.
    page.page.locator(".beam-tree g.is-dropped").first.dispatch_event("click")
    page.see("a", "Inspect this node").click()
    page.see(".map-readout")
    page.see("p", "of the beam decoding")
    # Another input, typed.
    page.open("#/probe/writing")
    page.see(".output .best")
    page.page.get_by_label("Input").fill("3 + 4")
    page.page.get_by_role("button", name="Run", exact=True).click()
    page.see(".output .mono", "3")
    assert "input=3" in page.page.evaluate("() => location.hash")


def test_the_probe_shows_an_input_error(open_page: OpenPage) -> None:
    page = open_page("#/probe/watched?input=nonsense", may_be_refused=True)
    page.see(".failure", "nonsense")


def test_explain_answers_what_carries_an_output(open_page: OpenPage) -> None:
    page = open_page("#/explain/writing?input=3 %2B 4")
    # Attributions: pointing at a generated token colours the input tokens that it depends on.
    page.see(".generated .coloured .token")
    page.page.locator(".generated > .coloured .token").nth(1).hover()
    page.see(".of-output .note", "what carries")
    assert check_exports(page, "Which input tokens carry the output?")[0][:3] == [
        "position",
        "token",
        "value",
    ]
    # Patching: arrow keys move between the cells of the grid.
    grid = page.see(".grid-figure")
    cells = check_exports(page, "Where does the model compute it?")
    assert cells[0] == ["site", "cell", "label", "effect", "gradient"]
    assert {row[0] for row in cells[1:]} >= {"encoder.embedding", "encoder.0.residual_post"}
    grid.focus()
    for _ in range(30):
        grid.press("ArrowLeft")
        grid.press("ArrowUp")
    page.see(".effect-grid [role=status]", "encoder.embedding")
    page.see(".check", "everything copied gives 1.000 (1), nothing 0.000 (0)")
    page.page.get_by_label("Copy", exact=True).select_option("heads")
    page.see(".effect-grid [role=status]", "head")
    # Alignment: one line per link.
    page.see(".alignment")
    links = check_exports(page, "Which words belong together?")
    assert page.page.locator(".alignment line").count() == len(links) - 1
    # Probes take longer, so they wait until somebody asks.
    assert page.page.get_by_role("button", name="Fit probes").is_visible()
    page.page.get_by_label("Label").select_option("sign")
    page.see(".explain .bar-legend", "control task")
    assert check_exports(page, "What can be read from each layer?")[0][0] == "site"
    page.until("() => location.hash.includes('label=') && location.hash.includes('part=heads')")


def test_pointing_at_a_token_colours_what_it_reads(open_page: OpenPage) -> None:
    page = open_page("#/inspect/watched?layer=0&head=1")
    page.see(".token-strip .note", "reads most from")
    tokens = page.page.locator(".token-strip .token")
    tokens.nth(2).focus()
    page.see(".token-strip .is-here")
    page.until("() => document.querySelectorAll('.token-strip .token')[2].classList.contains('is-here')")
    shares = [float(of.evaluate("of => of.style.getPropertyValue('--share')")) for of in tokens.all()]
    assert max(shares) == 1 and min(shares) >= 0


RESULTS = {
    "#/explain/watched": (".signed-bars", "Input"),
    "#/inspect/watched": (".map-canvas", "Input"),
    "#/probe/watched": (".output .best", "Input"),
    "#/film/watched": (".map-canvas", "Input"),
    "#/compare?a=watched": (".three .map-canvas", "Input"),
}


@pytest.mark.parametrize("route", RESULTS)
def test_a_bad_input_leaves_the_last_result_in_place(open_page: OpenPage, route: str) -> None:
    selector, label = RESULTS[route]
    page = open_page(route, may_be_refused=True)
    page.see(selector)
    page.page.evaluate("(selector) => { document.querySelector(selector).id = 'before'; }", selector)
    typed = page.page.get_by_label(label).first
    typed.fill("1 2 x 77")
    typed.press("Enter")
    error = page.see(".attempt .failure")
    page.see(".attempt", "Below: the last result")
    assert page.page.locator("#before").is_visible()  # the same element, not a new one
    assert error.bounding_box()["y"] < page.page.locator("#before").bounding_box()["y"]
    assert typed.input_value() == "1 2 x 77"
    # A good input replaces both.
    typed.fill(typed.get_attribute("placeholder") or "")
    typed.press("Enter")
    page.until("() => !document.querySelector('.attempt') && !document.getElementById('before')")
    page.see(selector)
    page.until("() => location.hash.includes('input=')")


def test_statistics_are_explained_on_hover_and_focus(open_page: OpenPage) -> None:
    page = open_page("#/inspect/watched?layer=0&head=1")
    page.see(".statistic .term", "entropy")
    terms = page.page.locator(".statistic .term")
    names = terms.all_inner_texts()
    assert {"diagonal", "anti-diagonal", "previous token", "entropy", "value share"} <= set(names)
    for number, name in enumerate(names):
        term = terms.nth(number)
        sentence = page.page.locator(f"#{term.get_attribute('aria-describedby')}")
        assert not sentence.is_visible()
        term.hover()
        assert sentence.is_visible() and len(sentence.inner_text()) > 20, name
        page.page.mouse.move(0, 0)
        assert not sentence.is_visible()
        term.focus()
        assert sentence.is_visible()
        page.page.keyboard.press("Escape")
        assert not sentence.is_visible()
    page.see(".explained", "mean distance")
    page.open("#/run/watched")
    page.see("section[aria-label=Results] .term", "accuracy").focus()
    assert "share of correct" in page.see("section[aria-label=Results] .explanation:visible").inner_text()


def test_buttons_have_names(open_page: OpenPage) -> None:
    """No button is called by a bare sign, such as "["; what is read aloud is what is shown, or more."""
    page = open_page()
    for route, selector in {
        "#/runs": "table.runs",
        "#/inspect/watched": "[aria-label='Next head']",
        "#/probe/writing": ".output .best",
        "#/explain/writing?input=3 %2B 4": ".alignment",
        "#/film/watched": ".map-canvas",
        "#/compare?a=watched": ".map-canvas",
    }.items():
        page.open(route)
        page.see(selector)
        names = page.page.evaluate(
            "() => [...document.querySelectorAll('button:not(.step-chip)')]"
            ".map((one) => one.getAttribute('aria-label') ?? one.textContent)"
        )
        assert all(re.search(r"\w{2}", name) for name in names), (route, names)
        texts = page.page.locator("button:not(.step-chip)").all_inner_texts()
        assert not {"[", "]", "{", "}"} & set(texts), route
    page.open("#/inspect/watched")
    page.see("button", "Head ›").click()
    page.until("() => document.querySelector('.map-detail h2').innerText.includes('layer 0, head 1')")
    page.see("button", "‹ Layer").click()
    page.until("() => document.querySelector('.map-detail h2').innerText.includes('layer 1, head 1')")


def test_the_film_moves_map_scores_and_loss_together(open_page: OpenPage) -> None:
    page = open_page("#/film/watched")
    last = page.see(".film-step", "step").inner_text()
    page.until("() => document.querySelector('.map-canvas')?.dataset.map")
    page.until("() => document.querySelectorAll('.chart .shapelayer path').length === 2")

    before = page.page.evaluate(f"() => {_FILM_STATE}")
    page.page.get_by_label("Checkpoint").fill("0")
    assert page.see(".film-step", "1 of").inner_text() != last
    for number in range(3):
        page.until(f"() => ({_FILM_STATE})[{number}] !== {before[number]!r}")
    page.see("p[role=status]", "this head at step")
    page.page.get_by_role("button", name="Play").click()
    page.see(".film-step", last)
    page.see("button", "Play")  # it has reached the end
    assert check_exports(page, "Map")[0][0] == "site"
    for route, name in (("#/film/watched", "Loss"), ("#/run/watched", "Curves")):
        page.open(route)
        page.see(f"section.panel[aria-label='{name}']")
        # The curves of the existing run: to train it again would draw none.
        assert re.fullmatch(r"glassformer report \S*watched --out report.html", command_of(page, name))


_FILM_STATE = (
    "[document.querySelector('.map-canvas').toDataURL(),"
    " ...[...document.querySelectorAll('.chart .shapelayer path')].map((path) => path.getAttribute('d'))]"
)


def test_a_run_without_snapshots_shows_how_to_keep_them(open_page: OpenPage) -> None:
    page = open_page("#/film/writing")
    page.see("code", "inspection.probe_heads=true")


def test_compare_shows_a_b_and_their_difference(open_page: OpenPage) -> None:
    page = open_page("#/compare?a=watched")
    page.until(
        "() => [...document.querySelectorAll('.map-canvas')].filter((one) => one.dataset.map).length === 3"
    )
    page.see(".panel .note", "untrained")
    page.page.locator(".map-canvas").first.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowDown")
    page.until(
        "() => [...document.querySelectorAll('.map-readout')].every((one) => !one.innerText.startsWith('≈'))"
    )
    first, second, difference = (
        float(page.page.locator(".map-readout strong").nth(number).inner_text()) for number in range(3)
    )
    assert difference == pytest.approx(second - first, abs=2e-5)
    assert " a.npz " in command_of(page, "B − A") and "print(b - a)" in command_of(page, "B − A")
    rows = check_exports(page, "B − A")
    found = {(row[0], row[2]): float(row[4]) for row in rows[1:]}
    assert found["1", "0"] == pytest.approx(difference, abs=2e-5)
    # Inputs of different lengths cannot be compared.
    page.open("#/compare?a=writing&b=watched")
    page.see(".empty", "cannot be compared")


def test_a_form_shows_errors_at_their_fields(open_page: OpenPage) -> None:
    page = open_page("#/new?source=reversal")
    field = page.see("[name='model.num_heads']")
    field.fill("-3")
    error = page.see("[data-path='model.num_heads'] .field-error")
    assert error.inner_text()
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("4")
    page.until("() => !document.querySelector('.field-error')")
    page.see(".form-foot .command", "model.num_heads=4")
    # Another kind has its own fields.
    page.page.locator("[data-group='model.position'] summary").click()
    page.page.locator("select[name='model.position.kind']").select_option(label="rotary")
    page.see("[name='model.position.base']")


def test_text_is_never_markup(open_page: OpenPage, runs: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    (runs / name).mkdir()
    try:
        (runs / name / "config.yaml").write_text("task: {kind: <b>bold</b>}\n", encoding="utf-8")
        page = open_page("#/runs", may_be_refused=True)
        page.see("table.runs", name)
        page.open(f"#/probe/watched?input={name}")
        page.see(".failure")
        assert page.page.locator("main img, main b").count() == 0
    finally:
        (runs / name / "config.yaml").unlink()
        (runs / name).rmdir()


def test_a_page_without_the_token_names_the_link(open_page: OpenPage) -> None:
    page = open_page(knows_token=False)
    page.see(".empty", "Open the link that the terminal printed")


def test_the_token_leaves_the_address(open_page: OpenPage) -> None:
    page = open_page()
    page.see("table.runs")
    assert page.page.evaluate("() => location.href").endswith("/#/runs")


def test_light_and_dark_follow_the_system_and_the_switch(open_page: OpenPage) -> None:
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    page = open_page("#/runs", color_scheme="dark")
    page.see("table.runs")
    dark = page.page.evaluate(ground)
    page.page.get_by_role("button", name="Light").click()
    light = page.page.evaluate(ground)
    assert dark != light
    page.page.reload()
    page.see("table.runs")
    assert page.page.evaluate(ground) == light


def test_every_view_fits_a_narrow_window(open_page: OpenPage) -> None:
    page = open_page()
    page.page.set_viewport_size({"width": 390, "height": 844})
    views = {
        "#/runs": "table.runs",
        "#/new?source=reversal": ".form-foot",
        "#/run/watched": "table.options",
        "#/inspect/writing?hint=lens": "table.lens",
        "#/probe/writing": ".output .best",
        "#/explain/writing?input=3 %2B 4": ".alignment",
        "#/film/watched": ".map-canvas",
        "#/compare?a=watched": ".map-canvas",
    }
    for route, selector in views.items():
        page.open(route)
        page.see(selector)
        assert page.page.evaluate("() => document.documentElement.scrollWidth") <= 390, route
        tools = page.page.locator("#theme").bounding_box()
        assert tools["x"] + tools["width"] <= 390, route  # within the screen


def test_keys_are_listed_and_links_lead_everywhere(open_page: OpenPage) -> None:
    page = open_page("#/run/watched", may_be_refused=True)
    page.see("section.panel[aria-label=Options]")
    page.page.locator("body").press("?")
    page.see("dialog", "change the head")
    page.page.keyboard.press("Escape")
    for view in ("Inspector", "Probe", "Film"):
        page.page.get_by_role("link", name=view, exact=True).click()
        page.until(f"() => document.querySelector('h1')?.textContent === '{view}'")
        assert page.page.evaluate("() => location.hash").split("?")[0].endswith("/watched")
    page.open("#/run/not-there")
    page.see(".failure", "no such run")


@pytest.mark.parametrize("view", ["inspect", "probe"])
def test_an_untrained_length_is_a_warning(open_page: OpenPage, view: str) -> None:
    page = open_page(f"#/{view}/watched?input=1%202%203")
    page.see(".input-warning", "trained on sequences of 6 tokens, not of 3")
    page = open_page(f"#/{view}/watched?input=1%202%203%200%201%202")
    page.see("section.panel")
    assert page.page.locator(".input-warning").count() == 0


def test_sweeps_smoothed_losses_and_different_lengths_are_named(open_page: OpenPage, runs: Path) -> None:
    page = open_page("#/compare?a=writing&b=watched")
    page.see(".empty", "Their inputs have different numbers of tokens")
    page.see(".empty", "A has 7 tokens, B has 6 tokens")
    page.see(".empty a.button", "Use the input of A for both")
    page.open("#/runs?select=watched")
    page.see("th", "Training loss")
    page.see(".legend", "watched")
    assert page.page.locator(".loss-note").count() == 0
    for route in ("#/runs?select=other", "#/run/other"):
        page.open(route)
        page.see(".loss-note", "training.label_smoothing")
    page.open("#/runs?select=watched")
    (runs / "sweep-1" / "runs").mkdir(parents=True)
    shutil.copytree(runs / "watched", runs / "sweep-1" / "runs" / "trial-0")
    try:
        page.see(".sweeps", "sweep-1 (1 run)")
    finally:
        shutil.rmtree(runs / "sweep-1")
