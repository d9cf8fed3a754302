"""The report as one page: nothing is fetched, only its own script may run, and text is never markup."""

from __future__ import annotations

import json
from importlib import resources

from glassformer.inspection.html import SHARED_SCRIPTS, SHARED_STYLES, content_hash, joined, page_data, static
from glassformer.reports.content import Content
from glassformer.reports.markup import Markup, join, tag
from glassformer.reports.sections import header, sections


def page(content: Content) -> str:
    script = joined([static(name) for name in SHARED_SCRIPTS] + [_own("report.js")])
    style = "".join([_own("report.css"), *(static(name) for name in SHARED_STYLES)])
    policy = (
        f"default-src 'none'; script-src {content_hash(script)}; style-src {content_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    body = [header(content), *sections(content)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{tag("title", content.title)}
<style>{style}</style>
</head>
<body>
{tag("main", *body)}
{_maps(content)}
<script type="module">{script}</script>
</body>
</html>
"""


def _maps(content: Content) -> Markup:
    """The weights that the script paints, a figure each."""
    found = [inside.maps for inside in content.insides if inside.maps is not None]
    made = []
    for place, maps in enumerate(found):
        # "<" in a token must not end the element that the data stand in.
        data = json.dumps(page_data(maps), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        made.append(Markup(f'<script type="application/json" id="maps-{place}">{data}</script>\n'))
    return join(made)


def _own(name: str) -> str:
    return (resources.files("glassformer.reports") / name).read_text(encoding="utf-8")
