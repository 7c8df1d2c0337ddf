"""Reads summaries for pages. A missing or damaged summary is shown as a text and does not fail the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from deltaworks.control.records.store import Record
from deltaworks.control.summaries.base import SummaryPart, decode_or_none
from deltaworks.errors import DeltaworksError

if TYPE_CHECKING:
    from deltaworks.console.page_context import PageContext

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
