"""The declaration of a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deltaworks.console.page_context import PageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page.

    `view` returns a frozen dataclass from data read through the context: plain values and instants, no ages, so that
        two views are equal exactly if nothing has changed. It is called in console threads, for several people at the
        same time, and raises PageMissingError if the page does not exist. The template `templates/<name>.html` shows
        it; `?format=json` returns it as data.

    A route with `{pipeline}` is called only for pipelines the person may read. `menu` is its label in the navigation;
    pages without one are reached by links. `may_cache` allows browsers to cache it, which is off for pages with
    personal data.
    """

    name: str
    route: str
    title: str
    view: Callable[[PageContext], Any]
    menu: str = ""
    may_cache: bool = True

    def title_of(self, context: PageContext) -> str:
        """Returns the title for an address."""
        return self.title.format(**context.values)
