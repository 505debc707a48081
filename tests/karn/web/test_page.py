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
    Asset,
    LivePage,
    asset,
    live_page,
    runs_page,
    script_policy,
    self_contained_page,
    serve_command,
)

IMPORT = re.compile(r'(?:from|import)\s*"esper/(\w+)"')


def known(name: str) -> Asset:
    found = asset(name)
    assert found is not None
    return found


def url(name: str) -> str:
    return f"/assets/{name}?v={known(name).version}"


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
        imported.update(IMPORT.findall(known(f"{name}.js").content().decode()))
    assert imported == set(modules)


@pytest.mark.parametrize("name", ["../page.py", "index.html", "", "main", "plotly.min.js"])
def test_other_names_are_not_served(name: str) -> None:
    assert asset(name) is None


def test_version_is_a_digest_of_the_content() -> None:
    for name in ("style.css", PLOTLY_NAME):
        digest = hashlib.sha256(known(name).content()).hexdigest()
        assert digest.startswith(known(name).version)


def test_file_that_is_replaced_later_keeps_content_and_version(tmp_path: Path) -> None:
    path = tmp_path / "file.js"
    path.write_bytes(b"before")
    found = Asset(path)
    (tmp_path / "new").write_bytes(b"after an upgrade")
    (tmp_path / "new").replace(path)
    assert (found.content(), found.part(2, 3), found.num_bytes) == (b"before", b"for", 6)


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
        assert base64.b64decode(encoded) == known(f"{name}.js").content()
    assert len(page) > known(PLOTLY_NAME).num_bytes
