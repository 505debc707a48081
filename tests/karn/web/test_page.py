"""The dashboard's page: its files, import map, policy, and the page with everything embedded."""

import base64
import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest

from esper.karn.web.page import (
    LIST_ENTRY,
    LIST_MODULES,
    PLOTLY_NAME,
    RUN_ENTRY,
    RUN_MODULES,
    LivePage,
    asset,
    asset_version,
    live_page,
    runs_page,
    script_policy,
    self_contained_page,
    serve_command,
)

IMPORT = re.compile(r'(?:from|import)\s*"esper/(\w+)"')


def url(name: str) -> str:
    return f"/assets/{name}?v={asset_version(name)}"


@pytest.mark.parametrize(
    ("page", "entry", "modules"),
    [
        (live_page(url, Path("run")), RUN_ENTRY, RUN_MODULES),
        (runs_page(url, Path("runs")), LIST_ENTRY, LIST_MODULES),
    ],
)
def test_import_map_has_exactly_what_the_scripts_of_a_page_import(
    page: LivePage, entry: str, modules: tuple[str, ...]
) -> None:
    import_map = json.loads(page.import_map)["imports"]
    assert import_map == {f"esper/{name}": url(f"{name}.js") for name in modules}
    imported = {entry}
    for name in modules:
        source = asset(f"{name}.js")
        assert source is not None
        imported.update(IMPORT.findall(source.decode()))
    assert imported == set(modules)


@pytest.mark.parametrize("name", ["../page.py", "index.html", "", "main", "plotly.min.js"])
def test_other_names_are_not_served(name: str) -> None:
    assert asset(name) is None


def test_version_is_a_digest_of_the_content() -> None:
    content = asset("style.css")
    assert content is not None
    assert hashlib.sha256(content).hexdigest().startswith(asset_version("style.css"))


def test_policy_allows_exactly_the_inline_import_map_of_the_page() -> None:
    page = live_page(url, Path("run"))
    inline = re.findall(r'<script type="importmap">(.*?)</script>', page.html, re.DOTALL)
    assert inline == [page.import_map]
    digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
    policy = dict(part.split(" ", 1) for part in script_policy(page.import_map).split("; "))
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in script_policy(page.import_map)


def test_hostile_names_cannot_leave_their_attribute_or_script() -> None:
    page = live_page(lambda name: f'"></script><b>{name}', Path('a"<b>'))
    assert "<b>" not in page.html
    assert json.loads(page.import_map)["imports"][f"esper/{RUN_ENTRY}"] == (
        f'"></script><b>{RUN_ENTRY}.js'
    )


def test_command_quotes_the_directory_for_a_shell() -> None:
    assert shlex.split(serve_command(Path("my run/it's"))) == [
        *("esper-telemetry", "serve"),
        "my run/it's",
    ]


def test_self_contained_page_embeds_the_view_and_loads_nothing() -> None:
    view = {"text": "</script><script>alert(1)</script>"}
    page = self_contained_page(json.dumps(view).encode())

    embedded = re.findall(r'id="embedded-view">(.*?)</script>', page, re.DOTALL)
    assert [json.loads(item) for item in embedded] == [view]
    assert not re.search(r'<(script|link)[^>]*\b(src|href)="(?!data:)', page)
    import_map = json.loads(re.findall(r'"importmap">(.*?)</script>', page)[0])["imports"]
    for name in RUN_MODULES:
        encoded = import_map[f"esper/{name}"].partition("base64,")[2]
        assert base64.b64decode(encoded) == asset(f"{name}.js")
    plotly = asset(PLOTLY_NAME)
    assert plotly is not None
    assert len(page) > len(plotly)
