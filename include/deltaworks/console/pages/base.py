"""The declaration of a console page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deltaworks.console.page_context import PageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The declaration of a console page: its view function, route, title and access rules.

    The function `view` returns a frozen dataclass from data read through the context: plain values and instants, no
    ages, so that two views are equal exactly if nothing has changed. It is called in console threads, for several
    people at the same time, and raises PageMissingError if the page does not exist. The template
    `templates/<name>.html` shows the view; with `?format=json` the view is returned as data.

    A route with `{pipeline}` is called only for pipelines the person may read. The label in the navigation is `menu`;
    pages without one are reached by links. Browsers may cache the page if `may_cache` is set, which is off for personal
    data.

    The view of a `document` is a complete HTML page, which is shown as it is and never cached by browsers. It may take
    a minute: documents have threads and connections of their own, so that other pages never wait for them.
    """

    name: str
    route: str
    title: str
    view: Callable[[PageContext], Any]
    menu: str = ""
    may_cache: bool = True
    document: bool = False

    def title_of(self, context: PageContext) -> str:
        """Returns the title for an address."""
        return self.title.format(**context.values)
