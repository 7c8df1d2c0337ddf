"""The application transactions of an open table, asked of its log as seldom as can be.

delta-rs keeps no transactions with a snapshot: for each that is asked for it reads every commit since the newest
checkpoint, once again. A stream that asks for two before each commit to thirty tables reads some thousand objects a
batch that way, only to learn what it has written itself. So what was read is remembered with the version it was read
at; a commit of this process on top of that version is known without reading, and any other version is read anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from deltalake import DeltaTable


@dataclass(slots=True)
class _Known:
    """Transactions by application id, as they are at one version of a table."""

    version: int
    transactions: dict[str, int | None] = field(default_factory=dict)


#: By the identity of an open table, which has no hash; one that is gone takes its entry with it.
_KNOWN: dict[int, _Known] = {}


def transaction_version(table: DeltaTable, app_id: str) -> int | None:
    """The transaction version of an application in the table as it is open; None where it has none.

    For the thread that uses the table.
    """
    known = _known_of(table)
    if app_id not in known.transactions:
        known.transactions[app_id] = table.transaction_version(app_id)
    return known.transactions[app_id]


def note_commit(table: DeltaTable, *, before: int, transactions: Iterable[tuple[str, int]]) -> None:
    """Remember what this process has just committed as the version after `before`, which was open until then.

    Args:
        transactions: by application id, all that the commit has set.
    """
    known = _KNOWN.get(id(table))
    if known is not None and known.version == before:
        _KNOWN[id(table)] = _Known(before + 1, known.transactions | dict(transactions))


def _known_of(table: DeltaTable) -> _Known:
    known = _KNOWN.get(id(table))
    if known is None:
        weakref.finalize(table, _KNOWN.pop, id(table), None).atexit = False
    if known is None or known.version != table.version():
        known = _KNOWN[id(table)] = _Known(table.version())
    return known
