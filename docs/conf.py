"""How the documentation is built: ``sphinx-build -W docs docs/_build/html``.  Reaches no network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import celery_redlock  # noqa: E402 - found through the line above

project = "celery_redlock"
author = "the celery_redlock authors"
copyright = f"2026, {author}"
version = release = celery_redlock.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "generated_tables",
    "timing_diagrams",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_ivar = True

# The examples of a page run in one application, on locks in memory and without a worker.
doctest_global_setup = (HERE / "_ext" / "doctest_setup.py").read_text(encoding="utf-8")

html_theme = "furo"
html_title = f"celery_redlock {release}"
html_static_path = ["_static"]
html_css_files = ["diagrams.css"]
html_copy_source = False
html_show_sphinx = False
