"""What a page declares of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deltaworks.console.page_context import PageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page.

    `view` makes a frozen dataclass of what it reads through the look: plain values and instants, no ages, so that two
    views are equal exactly when there is nothing new to show. It is called by a thread of the console's, may be called
    for many people at once, and raises PageMissingError where there is nothing of that name. The template
    `templates/<name>.html` shows it; `?format=json` gives it as it is.

    A route with `{pipeline}` is asked only for pipelines that the person may read. `menu` is the word for it in the
    navigation; a page without one is reached by links. `keep` lets browsers keep what they were sent: not where rows of
    people are shown.
    """

    name: str
    route: str
    title: str
    view: Callable[[PageContext], Any]
    menu: str = ""
    may_cache: bool = True

    def title_of(self, context: PageContext) -> str:
        """The title of one such page."""
        return self.title.format(**context.values)
