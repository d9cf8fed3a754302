"""Check that schemathesis loads: a request that the OpenAPI document allows is refused for two reasons only.

The document can state neither which texts a model reads, which must be the error's code, nor that a beam
search returns at most as many hypotheses as it has beams.
"""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.check
def valid_requests_are_refused_only_by_the_model(ctx: Any, response: Any, case: Any) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    document = response.json()
    error = document.get("detail") or document["error"]  # LibreTranslate's errors are a sentence and a detail
    assert error["code"] == "unsupported_by_model" or error["path"] == "decoding.n_best", error
