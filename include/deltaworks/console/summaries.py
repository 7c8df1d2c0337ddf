"""Summaries and instants as pages read them: what is missing or torn is a word on the page, and never an error."""

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
    """A summary, or why there is none: `never` written, or written and not to be read."""

    summary: S | None = None
    is_missing: bool = False
    problem: str = ""


def read_summaries(context: PageContext, kind: type[S], keys: Mapping[str, str]) -> dict[str, StoredSummary[S]]:
    """The summaries of pipelines, read at once.

    Args:
        keys: the key of each pipeline's.
    """
    context.objects.fetch(keys.values())
    return {pipeline: _read(context, kind, key) for pipeline, key in keys.items()}


def read_summary(context: PageContext, kind: type[S], key: str) -> StoredSummary[S]:
    """One summary."""
    return read_summaries(context, kind, {"": key})[""]


def _read(context: PageContext, kind: type[S], key: str) -> StoredSummary[S]:
    try:
        item = context.objects.get(key)
    except DeltaworksError as error:
        return StoredSummary(problem=error.message)
    if item is None:
        return StoredSummary(is_missing=True)
    summary = decode_or_none(kind, item.data, key=key)
    return StoredSummary(problem=f"{key} cannot be read; it is written anew.") if summary is None else StoredSummary(summary=summary)


def to_dict(piece: SummaryPart) -> dict[str, Any]:
    """A piece of a summary as plain data, which a view may hold."""
    return piece.model_dump()


def latest_instant(instants: Iterable[datetime | None]) -> datetime | None:
    """The latest of them, None where there is none."""
    return max((at for at in instants if at is not None), default=None)
