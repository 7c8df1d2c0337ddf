"""Ingests sealed files into the vault's tables, with each value encrypted under the key of its subject.

Files are ingested in portions of several files, in four steps: create the subjects' keys durably, merge cells
(encrypted values), merge links, delete the files. Each step is idempotent: after a crash the next run ingests the
remaining files again, into the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from deltaworks.errors import ContractError
from deltaworks.privacy.tokens.envelope_encryption import Identity
from deltaworks.privacy.vault.ingest_inputs import SealedFile, SealedFiles, SuppressionList, store_unreadable
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.privacy.vault.tables import IDENTITIES, LINKS, CellAddress, seal_cell

#: Limits per merge, which bound its memory.
MAX_FILES_PER_MERGE = 500
MAX_IDENTITIES_PER_MERGE = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RowKey = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class IngestResult:
    """The result of an ingest or of its dry run.

    Attributes:
        subjects: number of subjects; one that occurs in several portions counts several times.
        suppressed: identities dropped because of erasures.
        unreadable: bodies stored by day.
        remaining: files not ingested, including unreadable ones (`damaged`).
    """

    namespace: str
    dry_run: bool
    files: int = 0
    identities: int = 0
    subjects: int = 0
    links: int = 0
    suppressed: int = 0
    unreadable: int = 0
    remaining: int = 0
    damaged: list[str] = field(default_factory=list)
    suppression: int = 0
    seconds: float = 0.0


class VaultIngest:
    """One run of the ingest. The caller holds the vault's lock.

    Args:
        deadline: on the monotonic clock; no further files are started after it.
    """

    def __init__(
        self,
        vault: NamespaceVault,
        files: SealedFiles,
        suppressed: SuppressionList,
        *,
        dry_run: bool = False,
        deadline: float = float("inf"),
    ) -> None:
        self._vault = vault
        self._files = files
        self._suppressed = suppressed
        self._deadline = deadline
        self.result = IngestResult(namespace=vault.namespace, dry_run=dry_run, suppression=suppressed.number)

    def run(self) -> IngestResult:
        """Ingests all waiting files. A file that cannot be decrypted stays and is listed in the result.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE; files that were not ingested stay.
            ConcurrencyError: COMMIT_CONTENDED, VAULT_KEYS_CONTENDED.
        """
        started, result = time.monotonic(), self.result
        keys = self._files.keys()
        portion: list[SealedFile] = []
        processed = 0
        for key in keys:
            processed += 1
            if (opened := self._open_file(key)) is not None:
                portion.append(opened)
            if (
                len(portion) >= MAX_FILES_PER_MERGE
                or sum(len(f.identities) for f in portion) >= MAX_IDENTITIES_PER_MERGE
            ):
                self._ingest_files(portion)
                portion = []
                if time.monotonic() > self._deadline:
                    break
        self._ingest_files(portion)
        result.remaining = len(keys) - processed + len(result.damaged)
        result.seconds = time.monotonic() - started
        return result

    def _open_file(self, key: str) -> SealedFile | None:
        try:
            return self._files.open(key, split=not self.result.dry_run)
        except ContractError as error:
            self.result.damaged.append(f"{key}: {error.condition}")
            return None

    def _ingest_files(self, portion: Sequence[SealedFile]) -> None:
        if not portion:
            return
        result = self.result
        identities = self._without_suppressed(identity for file in portion for identity in file.identities)
        result.files += len(portion)
        result.identities += sum(identity.value is not None for identity in identities)
        result.links += len(
            {(identity.subject, identity.kind, identity.token) for identity in identities if _is_link(identity)}
        )
        result.subjects += len({identity.subject for identity in identities if identity.value is not None})
        result.unreadable += sum(len(frames) for file in portion for frames in file.unreadable.values())
        if result.dry_run:
            return
        self._write_rows(identities, portion)
        for file in portion:
            self._files.delete(file.key)

    def _write_rows(self, identities: Sequence[Identity], portion: Sequence[SealedFile]) -> None:
        """Writes keys and rows of some files durably. Only then may the caller delete the files."""
        for file in portion:
            for day, frames in file.unreadable.items():
                store_unreadable(self._vault.objects, self._vault.namespace, day, file.key, frames)
        self._vault.tables.merge_identities(self._cells(identities))
        self._vault.tables.merge_links(self._link_rows(identities))

    def _without_suppressed(self, identities: Iterable[Identity]) -> list[Identity]:
        accepted: list[Identity] = []
        for identity in identities:
            if self._suppressed.matches(identity):
                self.result.suppressed += 1
            else:
                accepted.append(identity)
        return accepted

    def _cells(self, identities: Sequence[Identity]) -> pa.Table:
        """Returns rows for the table `identities`, one per subject, kind and token, with newly encrypted values."""
        home = self._vault
        latest: dict[RowKey, tuple[str, int, int]] = {}
        for identity in identities:
            if identity.value is None:
                continue
            row, at = (identity.subject, identity.kind, identity.token), identity.at_ms
            value, first, last = latest.get(row, (identity.value, at, at))
            latest[row] = (identity.value if at >= last else value, min(first, at), max(last, at))
        keys = home.keys.get_or_create(subject for subject, _, _ in latest)
        records = []
        for (subject, kind, token), (value, first, last) in latest.items():
            address, key = CellAddress(home.namespace, subject, kind, token), keys[subject]
            records.append(
                {
                    **{"namespace": home.namespace, "subject": subject, "kind": kind, "token": token},
                    "value": seal_cell(value, key, address),
                    "key_version": key.version,
                    "first_seen": _instant(first),
                    "last_seen": _instant(last),
                }
            )
        return pa.Table.from_pylist(records, schema=IDENTITIES)

    def _link_rows(self, identities: Sequence[Identity]) -> pa.Table:
        first: dict[RowKey, int] = {}
        for identity in identities:
            if _is_link(identity):
                row = (identity.subject, identity.kind, identity.token)
                first[row] = min(first.get(row, identity.at_ms), identity.at_ms)
        records = [
            {
                **{"namespace": self._vault.namespace, "subject": subject, "kind": kind, "token": token},
                "first_seen": _instant(at),
            }
            for (subject, kind, token), at in first.items()
        ]
        return pa.Table.from_pylist(records, schema=LINKS)


def _is_link(identity: Identity) -> bool:
    """Returns whether the identity links a token to a subject with another token."""
    return identity.token != identity.subject


def _instant(at_ms: int) -> datetime:
    """Converts milliseconds to a time within the calendar's range, because producers' clocks may have any value."""
    return _EPOCH + timedelta(milliseconds=min(max(at_ms, 0), 253_402_300_799_000))
