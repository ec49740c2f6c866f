"""The documentation agrees with the code: its links, its examples and the names in it."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from celery_redlock.conf import APPLICATION_ONLY
from celery_redlock.options import OPTION_NAMES, LockOptions

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("example_project/*.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]
FENCE = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAME = re.compile(r"\b(re)?(?:d?lock)_([a-z_]*[a-z])\b(?!\()")
# Not options, though their names begin like one.
OTHERS = {"fence", "locks", "name", "timeout"}


def title(page):
    """A page's name, for the report."""
    return str(page.relative_to(ROOT))


def test_there_are_pages():
    """The checks below look at something."""
    assert len(PAGES) > 25


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_somewhere(page):
    """Every link to a file of this project finds it."""
    targets = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_examples_are_python(page):
    """Every block that says so can be compiled."""
    for block in FENCE.findall(page.read_text()):
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_names_of_options_exist(page):
    """Every ``lock_…`` and ``redlock_…`` that is mentioned can be written."""
    known = {*OPTION_NAMES, *OTHERS}
    mentioned = {(bool(red), name) for red, name in NAME.findall(page.read_text())}
    wrong = [
        n for red, n in mentioned if n not in known | (set(APPLICATION_ONLY) if red else set())
    ]
    assert wrong == []


def test_a_wrong_name_would_be_found():
    """The check above sees both spellings."""
    found = NAME.findall("set `lock_tll=5` and redlock_prefixx, but not block_x or lock_held()")
    assert [name for _, name in found] == ["tll", "prefixx"]


def test_the_readme_has_the_true_defaults():
    """Each plain default in the README's table is the option's own."""
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`|]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    defaults = {f.name: f.default for f in fields(LockOptions)}
    assert len(rows) >= 3
    for name, shown in rows:
        assert ast.literal_eval(shown) == defaults[name]
