"""Rows of a page: sorted, filtered and cut into pages of a hundred, all by the query string.

What matters is in the address, so that a page can be sent to somebody, and works without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

if TYPE_CHECKING:
    from deltaworks.console.page_context import PageContext
    from deltaworks.console.rendering import Frame

PAGE_ROWS: Final = 100
_MAX_FILTER_CHARACTERS = 200
Row = TypeVar("Row")
#: What a column is sorted by; None comes last, whichever way.
SortKeys = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[Row]):
    """One page of rows. `matching` are those that have the words of `only`, `total` all there are; pages begin at 1."""

    rows: tuple[Row, ...]
    sort: str
    descending: bool
    only: str
    page: int
    pages: int
    matching: int
    total: int

    def sort_address(self, frame: Frame, column: str) -> str:
        """The same rows sorted by a column; by the one they are sorted by already, the other way."""
        turned = column == self.sort and not self.descending
        return _address(frame, sort=column, order="down" if turned else "up", page=None)

    def page_address(self, frame: Frame, page: int) -> str:
        """Another page of the same rows."""
        return _address(frame, page=str(page))


def page_rows(
    context: PageContext,
    all_rows: Sequence[Row],
    *,
    keys: SortKeys,
    sort: str,
    text: Callable[[Row], str],
    descending: bool = False,
) -> Rows[Row]:
    """The rows that `?only=`, `?sort=`, `?order=` and `?page=` say; whatever these hold, there is an answer.

    Args:
        keys: the columns that rows can be sorted by.
        sort, descending: how they are sorted where nothing is said.
        text: what the words of `only` are looked for in.
    """
    only = context.query.get("only", "").strip()[:_MAX_FILTER_CHARACTERS]
    words = only.lower().split()
    matching = [row for row in all_rows if all(word in text(row).lower() for word in words)]
    chosen = context.query.get("sort", "")
    if chosen in keys:
        sort, descending = chosen, context.query.get("order") == "down"
    key = keys[sort]
    sorted_rows = sorted((row for row in matching if key(row) is not None), key=key, reverse=descending)
    sorted_rows += [row for row in matching if key(row) is None]
    pages = max(1, -(-len(sorted_rows) // PAGE_ROWS))
    page = min(max(_page_number(context.query.get("page", "")), 1), pages)
    return Rows(
        rows=tuple(sorted_rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]),
        sort=sort,
        descending=descending,
        only=only,
        page=page,
        pages=pages,
        matching=len(sorted_rows),
        total=len(all_rows),
    )


def _page_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _address(frame: Frame, **changes: str | None) -> str:
    path, _, query = frame.address.partition("?")
    values = {name: value for name, value in parse_qsl(query) if name not in ("fragment", "format")}
    values |= {name: value for name, value in changes.items() if value is not None}
    kept = {name: value for name, value in values.items() if not (name in changes and changes[name] is None)}
    return frame.root + path + (f"?{urlencode(kept)}" if kept else "")
