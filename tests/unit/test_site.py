"""The docs as a site: every page is in its navigation once, and it loads nothing from other hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import yaml

from deltaworks.specs.catalog import PROJECT_ROOT

SITE: dict[str, Any] = yaml.safe_load((PROJECT_ROOT / "mkdocs.yml").read_text())


def pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        yield nav
        return
    for item in nav.values() if isinstance(nav, dict) else nav:
        yield from pages(item)


def test_every_page_is_in_the_navigation_once() -> None:
    docs = PROJECT_ROOT / "docs"
    on_disk = {str(page.relative_to(docs)) for page in docs.glob("**/*.md")}

    assert Counter(pages(SITE["nav"])) == Counter(on_disk)


def test_a_link_that_leads_nowhere_ends_the_build() -> None:
    assert SITE["strict"] is True
    assert set(SITE["validation"]["links"].values()) == {"warn"}


def test_the_site_needs_no_network() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["plugins"] == ["search"], "that for pages from disk loads a script from a network"
    assert not [name for name in SITE if name.startswith("extra_")]
