"""Sphinx configuration: `make site` builds the pages of this folder into `docs/_site`."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import esper

project = "Esper"
author = "The Esper developers"
version = release = esper.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
exclude_patterns = ["_site"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Docstrings are Markdown-like: a single backtick marks code.
default_role = "code"

html_theme = "furo"
html_title = f"Esper {release}"


def setup(app: Sphinx) -> None:
    """Show Mermaid diagrams and websocket sessions, for which Pygments has no lexer, as text."""
    for language in ("mermaid", "session"):
        app.add_lexer(language, TextLexer)
