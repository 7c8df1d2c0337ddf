"""Rules for templates that keep escaping and the content security policy effective."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deltaworks.console.pages.registry import PAGES
from deltaworks.console.rendering import _FOLDER, templates

TEMPLATES = sorted((_FOLDER / "templates").glob("*.html"))
CODE = sorted(_FOLDER.rglob("*.py"))
FORBIDDEN = {
    r"\|\s*safe\b": "escaping is switched off",
    r"autoescape\s+false": "escaping is switched off",
    r"\sstyle\s*=": "the policy refuses inline styles",
    r"\son[a-z]+\s*=": "the policy refuses inline handlers",
    r"hx-on|hx-vals=[\"']js:|hx-trigger=[\"'][^\"']*\[": "htmx would evaluate it",
    r"javascript:": "a link runs it",
    r"<script(?![^>]*\bsrc=)": "the policy refuses inline scripts",
    r"target\s*=": "Airflow's frame opens no windows",
}


def forbidden(text: str) -> list[str]:
    return [why for pattern, why in FORBIDDEN.items() if re.search(pattern, text)]


def test_no_template_disables_escaping() -> None:
    assert {path.name: found for path in TEMPLATES if (found := forbidden(path.read_text()))} == {}
    assert forbidden('<a style="" target="_blank">{{ name | safe }}</a>') == [
        "escaping is switched off",
        "the policy refuses inline styles",
        "Airflow's frame opens no windows",
    ]


def creates_markup(text: str) -> bool:
    return re.search(r"\bMarkup\b|\bmarkupsafe\b", text) is not None


def test_only_templates_create_markup() -> None:
    assert [path.name for path in CODE if creates_markup(path.read_text())] == []
    assert creates_markup("from markupsafe import escape")


@pytest.mark.parametrize("page", [page for page in PAGES if not page.document], ids=lambda page: page.name)
def test_a_page_has_a_template_and_a_polled_part_without_fields(page: object) -> None:
    name = page.name  # type: ignore[attr-defined]
    source = (_FOLDER / "templates" / f"{name}.html").read_text()
    live = source.split("{% block live %}")[1].split("{% endblock %}")[0]

    templates().get_template(f"{name}.html")
    assert re.search(r"<(input|textarea|select)\b", live) is None


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_facts_are_pairs(path: Path) -> None:
    for facts in re.findall(r"<dl[^>]*>(.*?)</dl>", path.read_text(), re.DOTALL):
        assert len(re.findall(r"<div><dt>", facts)) == facts.count("<dt"), "term and description stand together"
