"""Reveals: decrypts the original values of a subject, after recording who reveals them and why.

One row per subject is committed to `reveals` first. A run that is killed afterwards is recorded although it revealed
nothing; a run that cannot commit reveals nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy.paths import vault_reveals
from deltaworks.privacy.vault.key_pages import SubjectKey
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.privacy.vault.tables import INSTANT, CellAddress, open_cell
from deltaworks.specs.descriptions import control_description
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake

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
#: Maximum number of subjects that a person reveals in a day (UTC) without an approval, in all namespaces.
MAX_WITHOUT_APPROVAL: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealedValue:
    """One decrypted value of a subject. If it could not be decrypted, `problem` is the condition."""

    subject: str
    kind: str
    token: str
    value: str
    first_seen: str
    last_seen: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevealCount:
    """Number and kinds of a subject's stored values."""

    subject: str
    values: int
    kinds: str


def count_values(vault: NamespaceVault, subjects: Sequence[str], kinds: Sequence[str]) -> list[RevealCount]:
    """Returns how many values a reveal would decrypt, per subject. Needs no key."""
    rows = _select_rows(vault, subjects, kinds, columns=("subject", "kind"))
    kinds_by_subject: dict[str, list[str]] = {subject: [] for subject in subjects}
    for row in rows:
        kinds_by_subject[row["subject"]].append(row["kind"])
    return [
        RevealCount(subject=subject, values=len(row_kinds), kinds=", ".join(sorted(set(row_kinds))))
        for subject, row_kinds in kinds_by_subject.items()
    ]


def reveal(
    vault: NamespaceVault, subjects: Sequence[str], kinds: Sequence[str], *, reason: str, by: str, approval: str = ""
) -> list[RevealedValue]:
    """Records the reveal and its reason, then decrypts the values. Values that cannot be decrypted do not stop the
    others.

    Args:
        kinds: kinds to reveal; all if empty.
        approval: the run in which it was approved.

    Raises:
        ConfigError: REVEAL_LIMIT_REACHED; nothing was decrypted.
        ConcurrencyError: COMMIT_CONTENDED; nothing was decrypted.
        TransientError: KEY_SERVICE_UNREACHABLE.
    """
    names = sorted(set(subjects))
    if not approval:
        _check_limit(vault, by, names)
    _record_reveal(vault, names, kinds, reason=reason, by=by, approval=approval)
    if not approval:
        # Again: reveals of the same person that ran at the same time are on record now.
        _check_limit(vault, by, names)
    keys = vault.keys.get(names)
    return [_open_row(vault, row, keys.get(row["subject"])) for row in _select_rows(vault, names, kinds)]


def needs_approval(vault: NamespaceVault, by: str, subjects: Sequence[str]) -> bool:
    """Whether a person needs an approval for these subjects, with those revealed today."""
    return len(_revealed_today(vault, by) | set(subjects)) > MAX_WITHOUT_APPROVAL


def _check_limit(vault: NamespaceVault, by: str, subjects: Sequence[str]) -> None:
    if needs_approval(vault, by, subjects):
        raise ConfigError(
            "REVEAL_LIMIT_REACHED",
            f"{by} would reveal more than {MAX_WITHOUT_APPROVAL} subjects today without an approval; nothing was "
            "decrypted.",
        )


def _revealed_today(vault: NamespaceVault, by: str) -> set[str]:
    """Returns the subjects that a person has revealed today without an approval, in all namespaces."""
    rows = Lake(vault.storage).rows(vault_reveals(), columns=["at", "by", "subject", "approval"])
    today = utc_now().date()
    return {
        row["subject"]
        for row in ([] if rows is None else rows.to_pylist())
        if row["by"] == by and row["at"].date() == today and not row["approval"]
    }


def read_reveals(lake: Lake, namespace: str) -> list[dict[str, Any]]:
    """Returns the recorded reveals of a namespace, newest first."""
    rows = lake.rows(vault_reveals())
    records = [] if rows is None else [row for row in rows.to_pylist() if row["namespace"] == namespace]
    return sorted(records, key=lambda row: (row["at"], row["subject"]), reverse=True)


def _record_reveal(
    vault: NamespaceVault, subjects: Sequence[str], kinds: Sequence[str], *, reason: str, by: str, approval: str
) -> None:
    reveal_id, at = uuid.uuid4().hex, utc_now()
    records = [
        {
            **{"reveal_id": reveal_id, "at": at, "by": by, "namespace": vault.namespace, "subject": subject},
            **{"kinds": list(kinds), "reason": reason, "approval": approval or None},
        }
        for subject in subjects
    ]
    lake, key = Lake(vault.storage), vault_reveals()
    metadata = user_metadata(pipeline=vault.namespace, batch=0, operation="reveal")
    table = ensure_described(lake, key, REVEALS, control_description("reveals"), user_metadata=metadata)
    rows = pa.Table.from_pylist(records, schema=REVEALS)
    lake.append(table, key, rows, step=Step(f"reveal/{reveal_id}", 1), user_metadata=metadata)


def _open_row(vault: NamespaceVault, row: dict[str, Any], key: SubjectKey | None) -> RevealedValue:
    address = CellAddress(vault.namespace, row["subject"], row["kind"], row["token"])
    value = problem = ""
    if key is None:
        problem = "VAULT_SHREDDED"
    else:
        try:
            value = open_cell(row["value"], key, address)
        except ContractError as error:
            problem = error.condition
    return RevealedValue(
        subject=address.subject,
        kind=address.kind,
        token=address.token,
        value=value,
        first_seen=_format_seconds(row["first_seen"]),
        last_seen=_format_seconds(row["last_seen"]),
        problem=problem,
    )


def _select_rows(
    vault: NamespaceVault, subjects: Sequence[str], kinds: Sequence[str], columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    rows = vault.tables.identities(subjects=subjects, columns=columns).to_pylist()
    selected = [row for row in rows if not kinds or row["kind"] in kinds]
    return sorted(selected, key=lambda row: (row["subject"], row["kind"], row.get("token", "")))


def _format_seconds(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
