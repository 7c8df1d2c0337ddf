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
_DEFAULT_CHECKPOINT_INTERVAL = 100
MAX_ATTEMPTS = 30
_INCONSISTENT_LISTING = re.compile(r"contiguous commit files|Invalid table version")
#: A hint of a checkpoint that is just being written; or one that is lost, for which nobody should wait for long.
_MISSING_CHECKPOINT = re.compile(r"didn't find any checkpoints")
_CHECKPOINT_ATTEMPTS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """An application transaction: `app_id` at `version` lands once, and versions only grow."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What became of a guarded commit. `newly_committed` is False where an earlier attempt had landed already."""

    version: int
    newly_committed: bool
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
    return _retry_inconsistent_listing(lambda: DeltaTable(uri, storage_options=dict(storage_options)))


def refresh(table: DeltaTable) -> None:
    """Bring an open table up to date, looking again where a listing was torn."""
    _retry_inconsistent_listing(table.update_incremental)


def _retry_inconsistent_listing(load: Callable[[], T]) -> T:
    """A listing is no snapshot on every server: it may hold commit N+1 and not yet N, or a hint and not yet its
    checkpoint, which delta-rs refuses."""
    for attempt in attempts(MAX_ATTEMPTS, first_wait_seconds=0.06, max_wait_seconds=0.8):
        try:
            return load()
        except DeltaError as error:
            missing = _MISSING_CHECKPOINT.search(str(error)) and attempt < _CHECKPOINT_ATTEMPTS
            if not missing and (attempt == MAX_ATTEMPTS or not _INCONSISTENT_LISTING.search(str(error))):
                raise
    raise AssertionError("the last attempt returned or raised")


def commit_attempts() -> Iterator[int]:
    """The numbers of the attempts at one commit. Whoever met another writer goes on with the next, after a wait."""
    return attempts(MAX_ATTEMPTS, first_wait_seconds=0.04, max_wait_seconds=2.0)


def contention_error(table: str, action: str, *, advice: str = "run this again") -> ConcurrencyError:
    """What is raised behind the last of `commit_attempts`."""
    return ConcurrencyError(
        "COMMIT_CONTENDED",
        f"{table}: {MAX_ATTEMPTS} attempts to {action} all met another writer.",
        hint=f"Another job writes this table without pause; let it end, then {advice}.",
    )


@dataclass(slots=True)
class _CachedTransactions:
    """Transactions by application id, as they are at one version of a table."""

    version: int
    by_application: dict[str, int | None] = field(default_factory=dict)


#: By the identity of an open table, which has no hash; one that is gone takes its entry with it.
_TRANSACTION_CACHE: dict[int, _CachedTransactions] = {}


def transaction_version(table: DeltaTable, app_id: str) -> int | None:
    """The transaction version of an application in the table as it is open; None where it has none.

    delta-rs keeps none with a snapshot: for each that is asked for it reads every commit since the newest checkpoint,
    so that a batch of thirty tables read some thousand objects to learn what it had written itself. What was read is
    remembered with its version. A commit of this process on top of that is known too; any other version is read anew.

    For the thread that uses the table.
    """
    cached = _TRANSACTION_CACHE.get(id(table))
    if cached is None:
        weakref.finalize(table, _TRANSACTION_CACHE.pop, id(table), None).atexit = False
    if cached is None or cached.version != table.version():
        cached = _TRANSACTION_CACHE[id(table)] = _CachedTransactions(table.version())
    if app_id not in cached.by_application:
        cached.by_application[app_id] = table.transaction_version(app_id)
    return cached.by_application[app_id]


def _cache_commit(table: DeltaTable, *, read_version: int, transactions: Sequence[Transaction]) -> None:
    """Remember what this process has just committed as the version after `before`, which was open until then."""
    cached = _TRANSACTION_CACHE.get(id(table))
    if cached is not None and cached.version == read_version:
        committed: dict[str, int | None] = {made.app_id: made.version for made in transactions}
        _TRANSACTION_CACHE[id(table)] = _CachedTransactions(read_version + 1, cached.by_application | committed)


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
        read_version = table.version()
        if owner is not None:
            # Also where the step has landed: by a successor, perhaps, and then there is nothing more to do here.
            check_owner_epoch(table, owner)
        current = transaction_version(table, step.app_id)
        if current is not None and current >= step.version:
            return CommitOutcome(version=read_version, newly_committed=False, attempts=attempt)
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
                post_commithook_properties=post_commit_properties(table),
            )
        except CommitFailedError as error:
            if "Unsupported table features" in str(error):
                raise _refused_commit_error(table, error) from error
            continue
        _cache_commit(table, read_version=read_version, transactions=transactions)
        # Without retries inside the library, what was committed on top of `before` is the version after it.
        return CommitOutcome(version=read_version + 1, newly_committed=True, attempts=attempt)
    raise contention_error(table.table_uri, f"commit {step.app_id} at {step.version}")


def post_commit_properties(table: DeltaTable) -> PostCommitHookProperties:
    """What delta-rs does behind a commit on top of the open version: a checkpoint where one falls due.

    Expired commits are removed with it, as Delta's own writers do. Left to itself delta-rs looks for them behind every
    commit, by a listing of the whole log: half a million objects of a table that gets one in five seconds for a month.
    """
    # delta-rs counts commits, of which version 0 is the first.
    is_checkpoint_due = (table.version() + 2) % checkpoint_interval(table) == 0
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None if is_checkpoint_due else False)


def checkpoint_interval(table: DeltaTable) -> int:
    """After how many commits a checkpoint of the open table falls due."""
    return int(table.metadata().configuration.get("delta.checkpointInterval") or _DEFAULT_CHECKPOINT_INTERVAL)


def raise_owner_epoch(table: DeltaTable, owner: Step, *, user_metadata: str) -> CommitOutcome:
    """Fence former owners: after this, a commit under a lower epoch fails. Idempotent."""
    return commit_step(table, [], step=owner, user_metadata=user_metadata)


def check_owner_epoch(table: DeltaTable, owner: Step) -> None:
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


def _refused_commit_error(table: DeltaTable, error: Exception) -> ContractError:
    return ContractError(
        "COMMIT_REFUSED",
        f"{table.table_uri}: delta-rs cannot commit to this table: {error}.",
        hint="Declare `writer: spark` for the table in pipeline.yaml.",
    )
