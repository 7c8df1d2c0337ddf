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


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_disables_escaping(path: Path) -> None:
    text = path.read_text()

    assert {why for pattern, why in FORBIDDEN.items() if re.search(pattern, text)} == set()


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(_FOLDER)))
def test_only_templates_create_markup(path: Path) -> None:
    assert not re.search(r"\bMarkup\b|\bmarkupsafe\b", path.read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if not page.document], ids=lambda page: page.name)
def test_a_page_has_a_template_and_a_polled_part_without_fields(page: object) -> None:
    name = page.name  # type: ignore[attr-defined]
    source = (_FOLDER / "templates" / f"{name}.html").read_text()
    live = source.split("{% block live %}")[1].split("{% endblock %}")[0]

    templates().get_template(f"{name}.html")
    assert re.search(r"<(input|textarea|select)\b", live) is None


def test_our_own_script_stays_small() -> None:
    assert len((_FOLDER / "assets" / "console.js").read_text().splitlines()) < 200
