"""LibreTranslate's endpoints: its own client, JSON and forms, lines, alternatives, languages, the API key."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from glassformer.serving.served import Languages, detect_languages

from .conftest import Running, serving

libretranslatepy = pytest.importorskip("libretranslatepy")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TOKEN = "a-token-of-this-test"


def translated(server: Running, text: str) -> str:
    return str(server.run("translation").run.predict(text)["output"])


def test_the_client_of_libretranslate(server: Running) -> None:
    client = libretranslatepy.LibreTranslateAPI(server.url)
    text = server.run("translation").examples[0]
    assert client.translate(text, "en", "fr") == translated(server, text)
    languages = client.languages()
    assert [(each["code"], each["name"], each["targets"]) for each in languages] == [
        ("en", "English", ["fr"]),
        ("fr", "French", []),
    ]
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.detect(text)
    assert refused.value.code == 404 and "detect" in json.loads(refused.value.read())["error"]


def test_json_forms_and_lists(server: Running) -> None:
    first, second = server.run("translation").examples[:2]
    expected = [translated(server, first), translated(server, second)]
    body = {"source": "en", "target": "fr", "format": "text"}
    assert server.post("/translate", {"q": first, **body}) == {"translatedText": expected[0]}
    assert server.post("/translate", {"q": [first, second], **body}) == {"translatedText": expected}
    assert server.post("/translate", {"q": f"{first}\n\n{second}\n", "target": "fr"}) == {
        "translatedText": f"{expected[0]}\n\n{expected[1]}"
    }
    assert server.post("/translate", {"q": "", "target": "fr"}) == {"translatedText": ""}
    form = urlencode([("q", first), ("q", second), *body.items(), ("alternatives", "1")]).encode()
    status, _, reply = server.request("POST", "/translate", form, FORM)
    found = json.loads(reply)
    assert status == 200 and [len(others) for others in found["alternatives"]] == [1, 1]


def test_alternatives(server: Running) -> None:
    text = server.run("translation").examples[0]
    found = server.post("/translate", {"q": text, "source": "en", "target": "fr", "alternatives": 3})
    assert len({found["translatedText"], *found["alternatives"]}) == 4
    beams = server.run("translation").run.predict(text, {"kind": "beam", "size": 4, "n_best": 4})
    assert beams["candidates"][0]["output"] == found["translatedText"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "de"}, "no run reads this language; allowed: en"),
        ({"target": "de"}, "no run translates to this language; allowed: fr"),
        ({"format": "html"}, "not one of the choices; allowed: text"),
        ({"alternatives": 99}, "must be less than or equal to 10"),
        ({"q": 3}, "must be a text or a list of texts"),
        ({"q": "word " * 200}, "too long"),
    ],
)
def test_errors_are_sentences(server: Running, change: dict[str, Any], message: str) -> None:
    body = {"q": "The room", "source": "en", "target": "fr"} | change
    status, _, reply = server.request("POST", "/translate", body)
    found = json.loads(reply)
    assert status == 400 and message in found["error"] and found["detail"]["path"] in ("q", *change)


def test_the_api_key_is_the_token(trained: dict[str, Path]) -> None:
    runs = {"translation": trained["translation"]}
    with serving(runs, token=TOKEN, languages={"translation": Languages("xx", "yy")}) as server:
        for key, is_right in ((None, False), ("wrong", False), (TOKEN, True)):
            client = libretranslatepy.LibreTranslateAPI(server.url, key)
            if is_right:
                assert client.translate("The room", "xx", "yy")
                assert client.languages()[0] == {"code": "xx", "name": "xx", "targets": ["yy"]}
                continue
            for ask in (lambda: client.translate("The room", "xx", "yy"), client.languages):  # noqa: B023
                with pytest.raises(urllib.error.HTTPError) as refused:
                    ask()
                assert refused.value.code == 401


def test_a_server_without_translation_says_so(trained: dict[str, Path]) -> None:
    with serving({"reversal": trained["reversal"]}) as server:
        status, _, reply = server.request("POST", "/translate", {"q": "x", "source": "en", "target": "fr"})
        assert status == 404 and "no served run translates" in json.loads(reply)["error"]
        assert server.get("/languages") == []


@pytest.mark.parametrize(
    ("data", "languages"),
    [
        (None, Languages("en", "fr")),
        ({"train": ["a/train.en", "a/train.de"]}, Languages("en", "de")),
        ({"train": ["a/train.en", "b/train.en"]}, None),
        ({"train": ["source.txt", "target.txt"]}, None),
        ({"train": "pairs.tsv", "columns": {"input": "en", "target": "fr"}}, Languages("en", "fr")),
        ({"train": "pairs.tsv", "columns": {"input": "text", "target": "label"}}, None),
        ({"train": "pairs.tsv", "columns": {"input": 0, "target": 1}}, None),
    ],
)
def test_languages_are_known_by_names_only(data: Any, languages: Languages | None) -> None:
    from types import SimpleNamespace

    from glassformer.core.config import validate
    from glassformer.tasks.translation import TranslationConfig

    config = validate(TranslationConfig, {"kind": "translation"} | ({} if data is None else {"data": data}))
    task: Any = SimpleNamespace(config=config)
    assert detect_languages(task) == languages
