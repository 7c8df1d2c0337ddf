"""Rows and summaries for pages: sorts, filters and pages rows by the query string, a hundred rows per page.

All state is in the address, so that a page can be shared and works without scripts. A missing or damaged summary is
shown as a text and does not fail the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

from deltaworks.control.records.store import Record
from deltaworks.control.summaries.base import SummaryPart, decode_or_none
from deltaworks.errors import DeltaworksError

if TYPE_CHECKING:
    from deltaworks.console.page_context import PageContext
    from deltaworks.console.rendering import Frame

PAGE_ROWS: Final = 100
_MAX_FILTER_CHARACTERS = 200
Row = TypeVar("Row")
#: Sort keys by column; rows with None come last in either order.
SortKeys = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[Row]):
    """One page of rows; page numbers start at 1. Of `total` rows, `matching` ones match the filter `only`."""

    rows: tuple[Row, ...]
    sort: str
    descending: bool
    only: str
    page: int
    pages: int
    matching: int
    total: int

    def sort_address(self, frame: Frame, column: str) -> str:
        """Returns the address of the rows sorted by a column. If they are sorted by it already, the order is
        reversed."""
        turned = column == self.sort and not self.descending
        return _address(frame, sort=column, order="down" if turned else "up", page=None)

    def page_address(self, frame: Frame, page: int) -> str:
        """Returns the address of another page."""
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
    """Returns the rows selected by `?only=`, `?sort=`, `?order=` and `?page=`. Invalid values are ignored.

    Args:
        keys: the sortable columns.
        sort, descending: the default order.
        text: returns the text of a row that `only` is matched against.
    """
    only = context.query.get("only", "").strip()[:_MAX_FILTER_CHARACTERS]
    words = only.lower().split()
    matching = [row for row in all_rows if all(word in text(row).lower() for word in words)]
    requested_sort = context.query.get("sort", "")
    if requested_sort in keys:
        sort, descending = requested_sort, context.query.get("order") == "down"
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
    remaining = {name: value for name, value in values.items() if not (name in changes and changes[name] is None)}
    return frame.root + path + (f"?{urlencode(remaining)}" if remaining else "")


S = TypeVar("S", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSummary(Generic[S]):
    """A summary. If there is none, it was never written (`is_missing`), or it is unreadable for the reason
    `problem`."""

    summary: S | None = None
    is_missing: bool = False
    problem: str = ""


def read_summaries(context: PageContext, kind: type[S], keys: Mapping[str, str]) -> dict[str, StoredSummary[S]]:
    """Reads the summaries of pipelines in parallel.

    Args:
        keys: the key of each pipeline's summary.
    """
    context.objects.fetch(keys.values())
    return {pipeline: _read(context, kind, key) for pipeline, key in keys.items()}


def read_summary(context: PageContext, kind: type[S], key: str) -> StoredSummary[S]:
    """Reads the summary stored at one key."""
    return read_summaries(context, kind, {"": key})[""]


def _read(context: PageContext, kind: type[S], key: str) -> StoredSummary[S]:
    try:
        item = context.objects.get(key)
    except DeltaworksError as error:
        return StoredSummary(problem=error.message)
    if item is None:
        return StoredSummary(is_missing=True)
    summary = decode_or_none(kind, item.data, key=key)
    return (
        StoredSummary(problem=f"{key} cannot be read; the next update replaces it.")
        if summary is None
        else StoredSummary(summary=summary)
    )


def to_dict(piece: SummaryPart) -> dict[str, Any]:
    """Returns a part of a summary as plain data for a view."""
    return piece.model_dump()


def latest_instant(instants: Iterable[datetime | None]) -> datetime | None:
    """Returns the latest instant, or None."""
    return max((at for at in instants if at is not None), default=None)
