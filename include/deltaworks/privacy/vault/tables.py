"""The vault's Delta tables: `identities` has the encrypted value of each token, `links` has tokens of the same event.

Rows are merged by subject, kind and token, so repeated ingests have no effect. Tables are partitioned by namespace:
concurrent jobs of two namespaces never write the same files.

A cell of `identities` is `u8 1 | u16 key_version | encrypted bytes`, with namespace, subject, kind and token as
associated data: a cell moved to another row cannot be decrypted.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidTag
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ContractError
from deltaworks.privacy.key_service import decrypt_bytes, encrypt_bytes
from deltaworks.privacy.paths import vault_identities, vault_links
from deltaworks.privacy.vault.key_pages import SubjectKey
from deltaworks.specs.descriptions import control_description
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import guarded_commit, refresh
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake, rows_of

INSTANT: Final = pa.timestamp("us", tz="UTC")
IDENTITIES: Final = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("key_version", pa.int32(), nullable=False),
        pa.field("first_seen", INSTANT, nullable=False),
        pa.field("last_seen", INSTANT, nullable=False),
    ]
)
LINKS: Final = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("first_seen", INSTANT, nullable=False),
    ]
)
#: VACUUM retention in hours, the minimum that Delta accepts by default.
RETENTION_HOURS: Final = 168
_SAME_ROW_PREDICATE = "t.subject = s.subject AND t.kind = s.kind AND t.token = s.token"
#: Refreshed daily: an update per event would rewrite the table every five minutes. delta-rs cannot log interval
#: arithmetic in predicates, so the rows contain the instant to compare.
_SEEN_LATER, _SEEN_BEFORE = "s.renewed > t.last_seen", "s.first_seen < t.first_seen"
_REFRESHED_COLUMN = "renewed"
_REFRESH_INTERVAL = dt.timedelta(days=1)
_LAST_SEEN, _FIRST_SEEN = {"last_seen": "s.last_seen"}, {"first_seen": "s.first_seen"}
#: A subject who returned after an erasure has a new key; the old cells cannot be decrypted.
_NEW_CELL = {"value": "s.value", "key_version": "s.key_version", "last_seen": "s.last_seen"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """The result of maintaining one table: `merged` small files became `files` larger ones, and `deleted` files were
    vacuumed.
    """

    table: str
    merged_files: int
    files: int
    deleted: int


class VaultTables:
    """Reads and writes the rows of one namespace. Not thread-safe."""

    def __init__(self, storage: StorageSpec, namespace: str) -> None:
        self._lake = Lake(storage)
        self._namespace = namespace
        self._open_tables: dict[str, DeltaTable] = {}

    def merge_identities(self, rows: pa.Table) -> None:
        """Merges rows with the schema `IDENTITIES`, one per subject, kind and token. Idempotent.

        Raises:
            ConcurrencyError: COMMIT_CONTENDED.
        """
        renewed = pc.subtract(rows.column("last_seen"), pa.scalar(_REFRESH_INTERVAL))
        self._merge(
            vault_identities(),
            rows.append_column(_REFRESHED_COLUMN, renewed),
            lambda merger: (
                merger.when_matched_update(_NEW_CELL, predicate="t.key_version <> s.key_version")
                .when_matched_update(_LAST_SEEN | _FIRST_SEEN, predicate=f"{_SEEN_LATER} AND {_SEEN_BEFORE}")
                .when_matched_update(_LAST_SEEN, predicate=_SEEN_LATER)
                .when_matched_update(_FIRST_SEEN, predicate=_SEEN_BEFORE)
                .when_not_matched_insert({name: f"s.{name}" for name in IDENTITIES.names})
            ),
        )

    def merge_links(self, rows: pa.Table) -> None:
        """Merges rows with the schema `LINKS`, one per subject, kind and token. Idempotent.

        Raises:
            ConcurrencyError: COMMIT_CONTENDED.
        """
        self._merge(
            vault_links(),
            rows,
            lambda merger: merger.when_matched_update(
                _FIRST_SEEN, predicate=_SEEN_BEFORE
            ).when_not_matched_insert_all(),
        )

    def identities(
        self, *, tokens: Collection[str] = (), subjects: Collection[str] = (), columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns the rows of `identities` with one of these tokens or subjects."""
        return self._select_rows(vault_identities(), IDENTITIES, tokens, subjects, columns)

    def links(
        self, *, tokens: Collection[str] = (), subjects: Collection[str] = (), columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns the rows of `links` with one of these tokens or subjects."""
        return self._select_rows(vault_links(), LINKS, tokens, subjects, columns)

    def maintain(self) -> list[MaintenanceResult]:
        """Compacts the namespace's small files and runs VACUUM with a retention of `RETENTION_HOURS`. Idempotent."""
        keys = (vault_identities(), vault_links())
        return [self._maintain_table(key, table) for key in keys if (table := self._lake.open(key)) is not None]

    def _maintain_table(self, key: str, table: DeltaTable) -> MaintenanceResult:
        properties = self._properties("keep")
        try:
            merged = table.optimize.compact(
                partition_filters=[("namespace", "=", self._namespace)], commit_properties=properties
            )
        except CommitFailedError:
            # A concurrent merge committed first. The next run compacts these files.
            merged = {"numFilesRemoved": 0, "numFilesAdded": 0}
        refresh(table)
        deleted = table.vacuum(RETENTION_HOURS, dry_run=False, commit_properties=properties)
        table.cleanup_metadata()
        return MaintenanceResult(
            table=key, merged_files=merged["numFilesRemoved"], files=merged["numFilesAdded"], deleted=len(deleted)
        )

    def _merge(self, key: str, rows: pa.Table, clauses: Callable[[Any], Any]) -> None:
        if not rows.num_rows:
            return
        table = self._open_tables.get(key)
        if table is None:
            metadata = self._metadata("create")
            name, schema = ("identities", IDENTITIES) if key == vault_identities() else ("links", LINKS)
            table = ensure_described(
                self._lake,
                key,
                schema,
                control_description(name),
                user_metadata=metadata,
                partition_by=["namespace"],
            )
            self._open_tables[key] = table
        # Declared names contain only letters, digits and _.
        predicate = f"t.namespace = '{self._namespace}' AND s.namespace = t.namespace AND {_SAME_ROW_PREDICATE}"

        def attempt(_: int) -> bool:
            refresh(table)
            merger = table.merge(
                rows,
                predicate,
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
                commit_properties=self._properties("take_in"),
            )
            clauses(merger).execute()
            return True

        guarded_commit(key, attempt, action="merge rows into it")

    def _select_rows(
        self,
        key: str,
        schema: pa.Schema,
        tokens: Collection[str],
        subjects: Collection[str],
        columns: Sequence[str] | None,
    ) -> pa.Table:
        names = list(columns or schema.names)
        form = pa.schema([schema.field(name) for name in names])
        table = self._lake.open(key)
        if table is None:
            return form.empty_table()
        in_namespace = pc.field("namespace") == self._namespace
        is_selected = pc.field("token").isin(pa.array(sorted(tokens), pa.string())) | pc.field("subject").isin(
            pa.array(sorted(subjects), pa.string())
        )
        return rows_of(self._lake, table, columns=names, filters=in_namespace & is_selected)

    def _metadata(self, operation: str) -> str:
        return user_metadata(pipeline=self._namespace, batch=0, operation=f"vault_{operation}")

    def _properties(self, operation: str) -> CommitProperties:
        return CommitProperties(custom_metadata={"userMetadata": self._metadata(operation)}, max_commit_retries=0)


_HEAD = struct.Struct(">BH")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CellAddress:
    """The row that an encrypted value belongs to."""

    namespace: str
    subject: str
    kind: str
    token: str

    @property
    def associated_data(self) -> bytes:
        """The row as associated data of the encryption. Each part has its length, so different rows never have the same
        bytes.
        """
        parts = [part.encode() for part in (self.namespace, self.subject, self.kind, self.token)]
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def seal_cell(value: str, key: SubjectKey, address: CellAddress) -> bytes:
    """Encrypts a value for its row. Each call returns different bytes."""
    sealed = encrypt_bytes(key.key, value.encode("utf-8", "surrogatepass"), address.associated_data)
    return _HEAD.pack(_FORMAT, key.version) + sealed


def open_cell(cell: bytes, key: SubjectKey, address: CellAddress) -> str:
    """Decrypts the value of a row.

    Raises:
        ContractError: VAULT_CELL_UNREADABLE, it was changed, or belongs to another row, key or release.
    """
    if len(cell) < _HEAD.size or cell[0] != _FORMAT:
        raise _unreadable_error(address, "its format is not supported by this release")
    if (version := key_version_of(cell)) != key.version:
        raise _unreadable_error(
            address, (f"it was encrypted with key version {version}, but the subject has {key.version}")
        )
    try:
        return decrypt_bytes(key.key, cell[_HEAD.size :], address.associated_data).decode("utf-8", "surrogatepass")
    except InvalidTag as error:
        raise _unreadable_error(address, "it was changed, or belongs to another row") from error


def key_version_of(cell: bytes) -> int:
    """Returns the version of the key that encrypted a cell."""
    return int(_HEAD.unpack_from(cell)[1])


def _unreadable_error(address: CellAddress, why: str) -> ContractError:
    return ContractError(
        "VAULT_CELL_UNREADABLE",
        f"The {address.kind} of {address.subject} in {address.namespace!r} cannot be decrypted: {why}.",
    )
