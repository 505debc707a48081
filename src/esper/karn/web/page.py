"""The dashboard's page: its files, their import map and the Content-Security-Policy.

The scripts import each other by name (`esper/format`); an import map resolves each name to a
versioned URL on the live server, or to a data URL embedded in a report.
"""

import base64
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
import orjson

__all__ = [
    "MEDIA_TYPES",
    "PLOTLY_NAME",
    "Asset",
    "LivePage",
    "asset",
    "address_of",
    "live_page",
    "map_styles",
    "runs_page",
    "inline_policy",
    "script_policy",
    "plotly_script",
    "serve_command",
    "self_contained_page",
]

MEDIA_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
PLOTLY_NAME: Final = "plotly.js"
RUN_ENTRY: Final = "main"
LIST_ENTRY: Final = "runs"
_SHARED: Final = ("address", "format", "plots", "theme")
RUN_MODULES: Final = (
    *("charts", "connection", "envs", "log", "panels", "store"),
    *_SHARED,
    RUN_ENTRY,
)
LIST_MODULES: Final = ("overlay", *_SHARED, LIST_ENTRY)
MODULES: Final = tuple(sorted({*RUN_MODULES, *LIST_MODULES}))
HASHED_BYTES: Final = 64 * 1024
_HEAD_MARK: Final = "<!--HEAD-->"
_TAIL_MARK: Final = "<!--TAIL-->"


class Asset:
    """One of the page's files, which stays on disk: plotly's script has megabytes."""

    def __init__(self, path: Path) -> None:
        # Open for as long as the process lives: an upgrade of its package replaces the file, and
        # what is sent must fit the version that is known of it.
        self._file = os.open(path, os.O_RDONLY)
        self.num_bytes = os.fstat(self._file).st_size
        digest = hashlib.sha256()
        for start in range(0, self.num_bytes, HASHED_BYTES):
            digest.update(self.part(start, HASHED_BYTES))
        self.version = digest.hexdigest()[:16]
        """A hash of the content."""

    def content(self) -> bytes:
        """Return all of it."""
        return self.part(0, self.num_bytes)

    def part(self, start: int, num_bytes: int) -> bytes:
        """Return a part of it."""
        return os.pread(self._file, num_bytes, start)


@cache
def asset(name: str) -> Asset | None:
    """Return one of the page's files or plotly's script; None for any other name."""
    if name == PLOTLY_NAME:
        return Asset(Path(str(files("plotly").joinpath("package_data", "plotly.min.js"))))
    known = {"style.css", *(f"{module}.js" for module in MODULES)}
    return Asset(_own_path(name)) if name in known else None


def _own_path(name: str) -> Path:
    return Path(str(files("esper.karn.web").joinpath("assets", name)))


class LivePage(msgspec.Struct, frozen=True):
    """A page of the live server, and its import map, whose hash the policy must contain."""

    html: str
    import_map: str


def serve_command(run_dir: Path) -> str:
    """Return the command that serves the dashboard of a running or finished run."""
    return f"esper-telemetry serve {shlex.quote(str(run_dir))}"


def address_of(name: str) -> str:
    """Return the versioned URL of one of the page's files on the live server."""
    return f"/assets/{name}?v={_known(name).version}"


def live_page(address_of: Callable[[str], str], run_dir: Path, base: str = "") -> LivePage:
    """Return the page of a run.

    Args:
        address_of: maps a file name to its URL.
        run_dir: the run directory, for the command that serves it again.
        base: path below which the server has the routes of this run.
    """
    meta = {"esper-serve-command": serve_command(run_dir), "esper-base": base}
    return _page_of("index.html", RUN_MODULES, RUN_ENTRY, meta, address_of)


def runs_page(address_of: Callable[[str], str], parent: Path) -> LivePage:
    """Return the page with the list of a directory's runs."""
    meta = {"esper-serve-command": serve_command(parent)}
    return _page_of("runs.html", LIST_MODULES, LIST_ENTRY, meta, address_of)


def _page_of(
    template: str,
    modules: Sequence[str],
    entry: str,
    meta: Mapping[str, str],
    address_of: Callable[[str], str],
) -> LivePage:
    import_map = _import_map(modules, address_of)
    facts = "".join(
        f'<meta name="{name}" content="{_attribute(text)}">' for name, text in meta.items()
    )
    head = f'<link rel="stylesheet" href="{_attribute(address_of("style.css"))}">{facts}'
    tail = (
        f'<script type="importmap">{import_map}</script>'
        f'<script src="{_attribute(address_of(PLOTLY_NAME))}"></script>'
        f'<script type="module" src="{_attribute(address_of(f"{entry}.js"))}"></script>'
    )
    html = _filled(template, head + map_styles(), tail)
    return LivePage(html=html, import_map=import_map)


def self_contained_page(embedded: bytes) -> str:
    """Return the page with all files and a view's JSON embedded."""
    import_map = _import_map(RUN_MODULES, _data_address)
    plotly = plotly_script()
    entry = f'import "esper/{RUN_ENTRY}";'
    style = _text("style.css")
    # The page's modules import each other from data URLs, which only an inline script names.
    policy = inline_policy(scripts=(import_map, plotly, entry), styles=(style,), sources=("data:",))
    # Inside a script element, only `<` could terminate the JSON early.
    view = embedded.decode().replace("<", "\\u003c")
    tail = (
        f'<script type="application/json" id="embedded-view">{view}</script>'
        f'<script type="importmap">{import_map}</script>'
        f"<script>{plotly}</script>"
        f'<script type="module">{entry}</script>'
    )
    return _filled("index.html", f"{policy}<style>{style}</style>{map_styles()}", tail)


def plotly_script() -> str:
    """Return plotly's script in a form that can be embedded in a page."""
    return _text(PLOTLY_NAME).replace("</script", "<\\/script")


def _import_map(modules: Sequence[str], address_of: Callable[[str], str]) -> str:
    addresses = {f"esper/{name}": address_of(f"{name}.js") for name in sorted(modules)}
    return orjson.dumps({"imports": addresses}).decode().replace("<", "\\u003c")


def _data_address(name: str) -> str:
    encoded = base64.b64encode(_text(name).encode()).decode()
    return f"data:text/javascript;charset=utf-8;base64,{encoded}"


@cache
def map_styles() -> str:
    """Return placeholders that keep plotly from adding inline styles for maps, which are unused."""
    names = re.findall(r'getElementById\("([0-9a-f]{64})"\)', _text(PLOTLY_NAME))
    return "".join(f'<template id="{name}"></template>' for name in sorted(set(names)))


def _text(name: str) -> str:
    return _known(name).content().decode()


def _known(name: str) -> Asset:
    found = asset(name)
    assert found is not None, f"the page has no file {name!r}"
    return found


def _filled(template: str, head: str, tail: str) -> str:
    page = _own_path(template).read_text(encoding="utf-8")
    return page.replace(_HEAD_MARK, head).replace(_TAIL_MARK, tail)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def script_policy(import_map: str) -> str:
    """Return the Content-Security-Policy: only own files and this inline import map."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'sha256-{_digest(import_map)}'",
            # plotly inserts an empty style element and adds rules to it; allow the empty digest.
            f"style-src 'self' 'sha256-{_digest('')}'",
            # Charts become PNG files by way of a picture that the page itself has made.
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def inline_policy(
    *, scripts: Sequence[str], styles: Sequence[str], sources: Sequence[str] = ()
) -> str:
    """Return the meta element of a file's Content-Security-Policy: only its own inline parts."""
    allowed_scripts = [*(f"'sha256-{_digest(script)}'" for script in scripts), *sources]
    # plotly inserts an empty style element and adds rules to it; allow the empty digest.
    allowed_styles = [f"'sha256-{_digest(style)}'" for style in (*styles, "")]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(allowed_scripts)}",
            f"style-src {' '.join(allowed_styles)}",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
