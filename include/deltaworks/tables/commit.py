"""Guarded commits to a Delta table through delta-rs: each step lands once, whoever repeats it.

delta-rs does not enforce application transactions itself. So a snapshot is loaded, the step's transaction is read
from it, and the commit is made *from that same object*, with retries inside the library turned off. Any conflict,
a lost reply among them, loads a new snapshot and decides again: a step that is found there has landed.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from deltaworks.control.retry import attempts
from deltaworks.errors import ConcurrencyError, ContractError, FencedError

#: Properties of every table we create. Retention is a property since Delta 4.1 (VACUUM's RETAIN is ignored there),
#: and is set at creation because changing it later conflicts with every writer.
TABLE_PROPERTIES: dict[str, str | None] = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.enableExpiredLogCleanup": "true",
}
#: Of a table that does not say, by delta-rs.
_CHECKPOINT_INTERVAL = 100
MAX_ATTEMPTS = 30
_TORN_LISTING = re.compile(r"contiguous commit files|Invalid table version")
#: A hint of a checkpoint that is just being written; or one that is lost, for which nobody should wait for long.
_TORN_CHECKPOINT = re.compile(r"didn't find any checkpoints")
_CHECKPOINT_ATTEMPTS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """An application transaction: `app_id` at `version` lands once, and versions only grow."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What became of a guarded commit. `landed_now` is False where an earlier attempt had landed already."""

    version: int
    landed_now: bool
    attempts: int


def ensure_table(
    uri: str,
    schema: pa.Schema,
    *,
    storage_options: Mapping[str, str],
    partition_by: Sequence[str] = (),
    user_metadata: str,
    properties: Mapping[str, str] | None = None,
) -> DeltaTable:
    """Open the table, creating it where there is none. Two creators at once end with one table."""
    options = dict(storage_options)
    problem: DeltaError | None = None
    for _ in attempts(MAX_ATTEMPTS, first_wait_seconds=0.3, max_wait_seconds=0.3):
        try:
            return open_table(uri, storage_options=options)
        except TableNotFoundError:
            pass
        try:
            return DeltaTable.create(
                uri,
                schema=schema,
                mode="error",
                partition_by=list(partition_by),
                configuration={**TABLE_PROPERTIES, **(properties or {})},
                storage_options=options,
                # With retries inside the library a second creator would lay its metadata over the first one's table.
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": user_metadata}, max_commit_retries=0
                ),
            )
        except DeltaError as error:
            problem = error
    raise ConcurrencyError(
        "TABLE_NOT_CREATED",
        f"Could not create or open {uri}: {problem}.",
        hint="Check the storage and the declaration, then start the job again.",
    ) from problem


def open_table(uri: str, *, storage_options: Mapping[str, str]) -> DeltaTable:
    """Open a table, looking again where a listing of its log was torn by commits made meanwhile.

    Raises:
        TableNotFoundError: there is no table.
    """
    return _through_torn_listings(lambda: DeltaTable(uri, storage_options=dict(storage_options)))


def refresh(table: DeltaTable) -> None:
    """Bring an open table up to date, looking again where a listing was torn."""
    _through_torn_listings(table.update_incremental)


def _through_torn_listings(look: Callable[[], T]) -> T:
    """A listing is no snapshot on every server: it may hold commit N+1 and not yet N, or a hint and not yet its
    checkpoint, which delta-rs refuses."""
    for attempt in attempts(MAX_ATTEMPTS, first_wait_seconds=0.06, max_wait_seconds=0.8):
        try:
            return look()
        except DeltaError as error:
            missing = _TORN_CHECKPOINT.search(str(error)) and attempt < _CHECKPOINT_ATTEMPTS
            if not missing and (attempt == MAX_ATTEMPTS or not _TORN_LISTING.search(str(error))):
                raise
    raise AssertionError("the last attempt returned or raised")


def commit_attempts() -> Iterator[int]:
    """The numbers of the attempts at one commit. Whoever met another writer goes on with the next, after a wait."""
    return attempts(MAX_ATTEMPTS, first_wait_seconds=0.04, max_wait_seconds=2.0)


def contended(table: str, doing: str, *, then: str = "run this again") -> ConcurrencyError:
    """What is raised behind the last of `commit_attempts`."""
    return ConcurrencyError(
        "COMMIT_CONTENDED",
        f"{table}: {MAX_ATTEMPTS} attempts to {doing} all met another writer.",
        hint=f"Another job writes this table without pause; let it end, then {then}.",
    )


@dataclass(slots=True)
class _ReadTransactions:
    """Transactions by application id, as they are at one version of a table."""

    version: int
    by_application: dict[str, int | None] = field(default_factory=dict)


#: By the identity of an open table, which has no hash; one that is gone takes its entry with it.
_READ: dict[int, _ReadTransactions] = {}


def transaction_version(table: DeltaTable, app_id: str) -> int | None:
    """The transaction version of an application in the table as it is open; None where it has none.

    delta-rs keeps none with a snapshot: for each that is asked for it reads every commit since the newest checkpoint,
    so that a batch of thirty tables read some thousand objects to learn what it had written itself. What was read is
    remembered with its version. A commit of this process on top of that is known too; any other version is read anew.

    For the thread that uses the table.
    """
    read = _READ.get(id(table))
    if read is None:
        weakref.finalize(table, _READ.pop, id(table), None).atexit = False
    if read is None or read.version != table.version():
        read = _READ[id(table)] = _ReadTransactions(table.version())
    if app_id not in read.by_application:
        read.by_application[app_id] = table.transaction_version(app_id)
    return read.by_application[app_id]


def _note_commit(table: DeltaTable, *, before: int, transactions: Sequence[Transaction]) -> None:
    """Remember what this process has just committed as the version after `before`, which was open until then."""
    read = _READ.get(id(table))
    if read is not None and read.version == before:
        own: dict[str, int | None] = {made.app_id: made.version for made in transactions}
        _READ[id(table)] = _ReadTransactions(before + 1, read.by_application | own)


def commit_step(
    table: DeltaTable,
    actions: Sequence[AddAction] | Callable[[DeltaTable], Sequence[AddAction]],
    *,
    step: Step,
    owner: Step | None = None,
    user_metadata: str,
    recreate_as: Schema | None = None,
) -> CommitOutcome:
    """Append files to the table as one step.

    Args:
        table: an open table; it is brought up to date first, and used by this thread only.
        actions: the files; or what says, given the table as it is committed to, which ones.
        owner: the owner epoch this commit is made under; it fails when a higher one has been raised.
        recreate_as: remove all files that are there, and have these columns from then on. The partition columns have
            to stay: delta-rs would break the table.

    Raises:
        FencedError: OWNER_FENCED, a successor has raised the owner epoch in this table.
        ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        ContractError: COMMIT_REFUSED when the table cannot take this commit at all.
    """
    transactions = [Transaction(step.app_id, step.version)]
    if owner is not None:
        transactions.append(Transaction(owner.app_id, owner.version))
    for attempt in commit_attempts():
        refresh(table)
        before = table.version()
        if owner is not None:
            # Also where the step has landed: by a successor, perhaps, and then there is nothing more to do here.
            check_owner(table, owner)
        landed = transaction_version(table, step.app_id)
        if landed is not None and landed >= step.version:
            return CommitOutcome(version=before, landed_now=False, attempts=attempt)
        try:
            table.create_write_transaction(
                list(actions(table) if callable(actions) else actions),
                mode="append" if recreate_as is None else "overwrite",
                schema=recreate_as or table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": user_metadata},
                    max_commit_retries=0,
                    app_transactions=transactions,
                ),
                post_commithook_properties=after_commit(table),
            )
        except CommitFailedError as error:
            if "Unsupported table features" in str(error):
                raise _refused(table, error) from error
            continue
        _note_commit(table, before=before, transactions=transactions)
        # Without retries inside the library, what was committed on top of `before` is the version after it.
        return CommitOutcome(version=before + 1, landed_now=True, attempts=attempt)
    raise contended(table.table_uri, f"commit {step.app_id} at {step.version}")


def after_commit(table: DeltaTable) -> PostCommitHookProperties:
    """What delta-rs does behind a commit on top of the open version: a checkpoint where one falls due.

    Expired commits are removed with it, as Delta's own writers do. Left to itself delta-rs looks for them behind every
    commit, by a listing of the whole log: half a million objects of a table that gets one in five seconds for a month.
    """
    # delta-rs counts commits, of which version 0 is the first.
    due = (table.version() + 2) % checkpoint_interval(table) == 0
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None if due else False)


def checkpoint_interval(table: DeltaTable) -> int:
    """After how many commits a checkpoint of the open table falls due."""
    return int(table.metadata().configuration.get("delta.checkpointInterval") or _CHECKPOINT_INTERVAL)


def raise_owner(table: DeltaTable, owner: Step, *, user_metadata: str) -> CommitOutcome:
    """Fence former owners: after this, a commit under a lower epoch fails. Idempotent."""
    return commit_step(table, [], step=owner, user_metadata=user_metadata)


def check_owner(table: DeltaTable, owner: Step) -> None:
    """Refuse to continue when the table's snapshot has a higher owner epoch.

    Raises:
        FencedError: OWNER_FENCED.
    """
    current = transaction_version(table, owner.app_id)
    if current is not None and current > owner.version:
        raise FencedError(
            "OWNER_FENCED",
            f"{table.table_uri}: owner epoch {current} has taken over from epoch {owner.version}.",
            hint="Nothing: the successor continues where this one stopped.",
        )


def _refused(table: DeltaTable, error: Exception) -> ContractError:
    return ContractError(
        "COMMIT_REFUSED",
        f"{table.table_uri}: delta-rs cannot commit to this table: {error}.",
        hint="Declare `writer: spark` for the table in pipeline.yaml.",
    )
