"""Form for a new run: unset options, columns, the preview of a file, and a training that fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from glassformer.studio.app import Studio

from .conftest import OpenPage, Page


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    rows = [f"film {n},all of it {n},{('good', 'bad')[n % 2]}\n" for n in range(40)]
    path.write_text("title,body,label\n" + "".join(rows), encoding="utf-8")
    return path


def open_form(open_page: OpenPage, source: str, values: dict[str, Any], **options: Any) -> Page:
    page = open_page(**options)
    page.open(f"#/new?{urlencode({'source': source, 'set': json.dumps(values)})}")
    page.see(".form-foot")
    return page


def chosen(page: Page, name: str) -> str:
    script = f"() => document.querySelector('[name=\"{name}\"]').selectedOptions[0].text"
    return str(page.page.evaluate(script))


def test_the_first_preset_is_that_of_the_readme(open_page: OpenPage) -> None:
    page = open_page("#/new")
    assert page.see(".preset strong").inner_text() == "reversal"
    assert page.see(".about-preset h2").inner_text() == "reversal"


def test_own_data_hide_what_is_expected_of_the_preset(open_page: OpenPage, table: Path) -> None:
    page = open_form(open_page, "classification", {})
    assert page.see(".about-preset p.note", "Expected").is_visible()
    page.open(
        f"#/new?{urlencode({'source': 'classification', 'set': json.dumps({'task.data.train': str(table)})})}"
    )
    page.until("() => document.querySelector('.about-preset p.note')?.hidden")


def test_unset_options_look_unset_and_three_states_can_be_chosen(open_page: OpenPage) -> None:
    page = open_form(open_page, "classification", {"task.data.train": "not-there.csv"})
    assert chosen(page, "task.data.format") == "unset: by the file name's ending"
    assert page.see("[name='task.data.validation']").get_attribute("placeholder").startswith("unset: ")
    header = page.see("select[name='task.data.header']")
    assert header.evaluate("(one) => one.options.length") == 3
    assert chosen(page, "task.data.header").startswith("unset: ")
    for label, text in (("yes", "task.data.header=true"), ("no", "task.data.header=false")):
        page.page.locator("[name='task.data.header']").select_option(label=label)
        page.see(".form-foot .command", text)
    page.page.locator("[name='task.data.header']").select_option(index=0)
    page.until("() => !document.querySelector('.form-foot .command').innerText.includes('header')")
    page.see("[data-path='task.data.train'] .field-error")  # from reading the file


def test_a_file_is_shown_as_it_will_be_read(open_page: OpenPage, table: Path) -> None:
    page = open_form(open_page, "classification", {"task.data.train": str(table)})
    page.see("[data-split=train]")
    page.page.locator("[name='task.data.columns.input']").fill("title, body")
    page.page.locator("[name='task.data.columns.target']").fill("label")
    page.see(".form-foot .command", "'task.data.columns.input=[title, body]'")
    page.until("() => document.querySelectorAll('.preview thead .role').length === 3")
    page.until(
        "() => [...document.querySelectorAll('.preview thead th')].map((one) => one.innerText).join('|')"
        " === 'line|input title|input body|target label'"
    )
    page.see(".preview tbody tr", "all of it 0")
    page.see("[data-split=train] .classes", "2 classes")
    page.page.locator("[name='task.data.columns.input']").fill("body")
    page.see(".preview th.is-ignored", "ignored title")
    # The names of the columns are offered, and an unknown one is an error at its field.
    assert page.page.locator("datalist#columns option").count() == 3
    page.page.locator("[name='task.data.columns.input']").fill("nonsense")
    page.see(".field-error", "nonsense")
    # A narrow window scrolls the table, not the page.
    page.page.locator("[name='task.data.columns.input']").fill("body")
    page.see(".preview")
    page.page.set_viewport_size({"width": 400, "height": 850})
    page.until("() => document.documentElement.scrollWidth <= 400")


@pytest.fixture
def no_leftovers(studio: Studio) -> Iterator[None]:
    yield
    studio.trainings._started.clear()
    for path in (studio.folder.path / ".studio").glob("*"):
        path.unlink()


def test_a_failed_training_leads_back_to_its_form(
    open_page: OpenPage, table: Path, tmp_path: Path, no_leftovers: None
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("label,content\ngood,a text\n", encoding="utf-8")
    columns = {"task.data.columns.input": "body", "task.data.columns.target": "label"}
    values = {"task.data.train": str(table), "task.data.test": str(other), **columns, "seed": 5}
    page = open_form(open_page, "classification", values)
    page.see("[data-path='task.data.test'] .field-error")
    page.see(".form-foot .command", "seed=5")
    page.page.get_by_role("button", name="Start training").click()
    page.see(".status-failed", "failed")
    page.see(".failure", "other.csv")
    assert "other.csv" in page.see("section[aria-label=Output] .log").inner_text()
    page.page.get_by_role("link", name="Change and try again").click()
    page.see("[data-path='task.data.test'] .field-error")
    for path, value in values.items():
        assert page.page.locator(f"[name='{path}']").input_value() == str(value)
