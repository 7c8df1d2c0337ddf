"""Reveals: what stands behind the tokens of a subject, opened for a reason that is on record before.

A row a subject is committed to `reveals` first. A run that dies behind it has opened nothing, and is on record; one
that cannot commit opens nothing either.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from deltaworks.control import vault_paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ContractError
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.vault.cells import Place, open_cell
from deltaworks.vault.home import VaultHome
from deltaworks.vault.pages import SubjectKey
from deltaworks.vault.tables import INSTANT

REVEALS: Final = pa.schema(
    [
        pa.field("reveal_id", pa.string(), nullable=False),
        pa.field("at", INSTANT, nullable=False),
        pa.field("by", pa.string(), nullable=False),
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("kinds", pa.list_(pa.string()), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("approval", pa.string()),
    ]
)
#: Above so many subjects at once an approval is needed.
MOST_WITHOUT_APPROVAL: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """One value of a subject; without one, `problem` says why: the condition under which its cell did not open."""

    subject: str
    kind: str
    token: str
    value: str
    first_seen: str
    last_seen: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Countable:
    """What a reveal would open of a subject: how many values, and of which kinds."""

    subject: str
    values: int
    kinds: str


def count(home: VaultHome, subjects: Sequence[str], kinds: Sequence[str]) -> list[Countable]:
    """What a reveal would open. Opens nothing, and needs no key."""
    rows = _rows(home, subjects, kinds, columns=("subject", "kind"))
    kinds_of: dict[str, list[str]] = {subject: [] for subject in subjects}
    for row in rows:
        kinds_of[row["subject"]].append(row["kind"])
    return [
        Countable(subject=subject, values=len(of), kinds=", ".join(sorted(set(of)))) for subject, of in kinds_of.items()
    ]


def reveal(
    home: VaultHome, subjects: Sequence[str], kinds: Sequence[str], *, reason: str, by: str, approval: str = ""
) -> list[Revealed]:
    """Put on record who opens what and why, then open it. A cell that does not open stops no other.

    Args:
        kinds: only these; all where there are none.
        approval: the run in which it was approved, where it was.

    Raises:
        ConcurrencyError: COMMIT_CONTENDED; nothing was opened.
        TransientError: KEY_SERVICE_UNREACHABLE.
    """
    names = sorted(set(subjects))
    _put_on_record(home, names, kinds, reason=reason, by=by, approval=approval)
    keys = home.keys.of(names)
    return [_opened(home, row, keys.get(row["subject"])) for row in _rows(home, names, kinds)]


def reveals(lake: Lake, namespace: str) -> list[dict[str, Any]]:
    """The reveals of a namespace, the newest first."""
    rows = lake.rows(vault_paths.reveals())
    records = [] if rows is None else [row for row in rows.to_pylist() if row["namespace"] == namespace]
    return sorted(records, key=lambda row: (row["at"], row["subject"]), reverse=True)


def _put_on_record(
    home: VaultHome, subjects: Sequence[str], kinds: Sequence[str], *, reason: str, by: str, approval: str
) -> None:
    reveal_id, at = uuid.uuid4().hex, utc_now()
    records = [
        {
            **{"reveal_id": reveal_id, "at": at, "by": by, "namespace": home.namespace, "subject": subject},
            **{"kinds": list(kinds), "reason": reason, "approval": approval or None},
        }
        for subject in subjects
    ]
    lake, key = Lake(home.storage), vault_paths.reveals()
    metadata = user_metadata(pipeline=home.namespace, batch=0, operation="reveal")
    table = lake.ensure(key, REVEALS, user_metadata=metadata)
    rows = pa.Table.from_pylist(records, schema=REVEALS)
    lake.append(table, key, rows, step=Step(f"reveal/{reveal_id}", 1), user_metadata=metadata)


def _opened(home: VaultHome, row: dict[str, Any], key: SubjectKey | None) -> Revealed:
    place = Place(home.namespace, row["subject"], row["kind"], row["token"])
    value = problem = ""
    if key is None:
        problem = "VAULT_SHREDDED"
    else:
        try:
            value = open_cell(row["value"], key, place)
        except ContractError as error:
            problem = error.condition
    return Revealed(
        subject=place.subject,
        kind=place.kind,
        token=place.token,
        value=value,
        first_seen=_second(row["first_seen"]),
        last_seen=_second(row["last_seen"]),
        problem=problem,
    )


def _rows(
    home: VaultHome, subjects: Sequence[str], kinds: Sequence[str], columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    rows = home.tables.identities(subjects=subjects, columns=columns).to_pylist()
    chosen = [row for row in rows if not kinds or row["kind"] in kinds]
    return sorted(chosen, key=lambda row: (row["subject"], row["kind"], row.get("token", "")))


def _second(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
