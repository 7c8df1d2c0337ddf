"""Commits to a Delta table through delta-rs, exactly once per step.

delta-rs does not enforce application transactions. So each attempt loads a snapshot, checks the step's transaction in
it, and commits on top of that snapshot; delta-rs' own retries are off. After a conflict or a lost reply, a new snapshot
shows whether the step was committed.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from deltaworks.control.background import attempts
from deltaworks.errors import ConcurrencyError, ContractError, FencedError
from deltaworks.tables.variant import delta_schema

#: Properties of every table created here. Since Delta 4.1 the retention is a table property (VACUUM ignores RETAIN). It
#: is set at creation, because changing it later conflicts with concurrent writers.
TABLE_PROPERTIES: dict[str, str | None] = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.enableExpiredLogCleanup": "true",
}
#: delta-rs' default for tables without this property.
_DEFAULT_CHECKPOINT_INTERVAL = 100
MAX_ATTEMPTS = 30
_INCONSISTENT_LISTING = re.compile(r"contiguous commit files|Invalid table version")
#: Matches the error if `_last_checkpoint` names a checkpoint that does not exist: it is still being written, or lost.
#: Waiting does not help in the latter case, so there are few attempts.
_MISSING_CHECKPOINT = re.compile(r"didn't find any checkpoints")
_CHECKPOINT_ATTEMPTS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """An application transaction: `app_id` is committed at `version` once, and versions only increase."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """Result of a guarded commit. `newly_committed` is False if an earlier attempt had already committed the step."""

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
    description: str = "",
) -> DeltaTable:
    """Opens the table, or creates it if it does not exist. Safe with concurrent creators: all of them open the same
    table.
    """
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
                schema=delta_schema(schema),
                mode="error",
                description=description or None,
                partition_by=list(partition_by),
                configuration={**TABLE_PROPERTIES, **(properties or {})},
                storage_options=options,
                # With delta-rs' own retries, a second creator would overwrite the metadata of the first one's table.
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": user_metadata}, max_commit_retries=0
                ),
            )
        except DeltaError as error:
            problem = error
    raise ConcurrencyError("TABLE_NOT_CREATED", f"Could not create or open {uri}: {problem}.") from problem


def open_table(uri: str, *, storage_options: Mapping[str, str]) -> DeltaTable:
    """Opens a table. Retries if the listing of its log is inconsistent because of concurrent commits.

    Raises:
        TableNotFoundError: the table does not exist.
    """
    return _retry_inconsistent_listing(lambda: DeltaTable(uri, storage_options=dict(storage_options)))


def refresh(table: DeltaTable) -> None:
    """Updates an open table to its newest version. Retries if the listing of its log is inconsistent."""
    _retry_inconsistent_listing(table.update_incremental)


def _retry_inconsistent_listing(load: Callable[[], T]) -> T:
    """Calls `load`; retries while delta-rs rejects the listing of the log as inconsistent.

    Some servers do not list a snapshot: a listing may contain commit N+1 without commit N, or `_last_checkpoint`
    without its checkpoint.
    """
    for attempt in attempts(MAX_ATTEMPTS, first_wait_seconds=0.06, max_wait_seconds=0.8):
        try:
            return load()
        except DeltaError as error:
            missing = _MISSING_CHECKPOINT.search(str(error)) and attempt < _CHECKPOINT_ATTEMPTS
            if not missing and (attempt == MAX_ATTEMPTS or not _INCONSISTENT_LISTING.search(str(error))):
                raise
    raise AssertionError("the last attempt returned or raised")


def commit_attempts() -> Iterator[int]:
    """Yields the attempt numbers for one commit, and waits before each retry."""
    return attempts(MAX_ATTEMPTS, first_wait_seconds=0.04, max_wait_seconds=2.0)


def guarded_commit(table: str, attempt: Callable[[int], T | None], *, action: str, advice: str = "run this again") -> T:
    """Repeats a commit until it does not conflict with a concurrent one. Returns the result of the last attempt.

    An attempt reads the newest version, checks there what must still hold (owner, step, columns, files), and commits
    exactly the version after it.

    Args:
        attempt: called with the number of the attempt, from 1. Returns None, or raises `CommitFailedError` as delta-rs
            does, if another writer committed first.
        action: the commit in an infinitive, for the error.
        advice: what to do once the other writer has ended.

    Raises:
        ConcurrencyError: COMMIT_CONTENDED, all `commit_attempts` conflicted.
    """
    for number in commit_attempts():
        with contextlib.suppress(CommitFailedError):
            outcome = attempt(number)
            if outcome is not None:
                return outcome
    raise ConcurrencyError(
        "COMMIT_CONTENDED",
        f"{table}: {MAX_ATTEMPTS} attempts to {action} all conflicted with another writer.",
        hint=f"Another job keeps writing this table. Wait until it ends, then {advice}.",
    )


@dataclass(slots=True)
class _CachedTransactions:
    """Transaction versions by application id, as of one version of a table."""

    version: int
    by_application: dict[str, int | None] = field(default_factory=dict)


#: Keyed by the `id` of an open table, because it is not hashable. The entry is removed when the table is freed.
_TRANSACTION_CACHE: dict[int, _CachedTransactions] = {}


def transaction_version(table: DeltaTable, app_id: str) -> int | None:
    """Returns the version of an application's transaction in an open table; None if the application has none.

    For each call, delta-rs reads every commit since the newest checkpoint: a batch of thirty tables read about a
    thousand objects. Results are therefore cached per table version, and this process's own commits update the cache.
    Call it only from the thread that uses the table.
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
    """Updates the cache after this process committed on top of `read_version`."""
    cached = _TRANSACTION_CACHE.get(id(table))
    if cached is not None and cached.version == read_version:
        committed: dict[str, int | None] = {transaction.app_id: transaction.version for transaction in transactions}
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
    """Appends files to the table as one step.

    Args:
        table: an open table; it is refreshed first. Use it from one thread only.
        actions: the add actions, or a function that returns them for the refreshed table.
        owner: the owner epoch of this commit; the commit fails if a higher epoch is in the table.
        recreate_as: removes all present files and sets these columns. Partition columns must stay the same, otherwise
            delta-rs would break the table.

    Raises:
        FencedError: OWNER_FENCED, a successor has raised the owner epoch in this table.
        ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        ContractError: COMMIT_REFUSED, delta-rs does not support the table.
    """
    transactions = [Transaction(step.app_id, step.version)]
    if owner is not None:
        transactions.append(Transaction(owner.app_id, owner.version))

    def attempt(number: int) -> CommitOutcome:
        refresh(table)
        read_version = table.version()
        if owner is not None:
            # Checked even if the step is committed, because a successor may have committed it; this owner must stop
            # then.
            check_owner_epoch(table, owner)
        current = transaction_version(table, step.app_id)
        if current is not None and current >= step.version:
            return CommitOutcome(version=read_version, newly_committed=False, attempts=number)
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
            raise
        _cache_commit(table, read_version=read_version, transactions=transactions)
        # Without delta-rs' own retries, the commit has exactly the version after `read_version`.
        return CommitOutcome(version=read_version + 1, newly_committed=True, attempts=number)

    return guarded_commit(table.table_uri, attempt, action=f"commit {step.app_id} at {step.version}")


def post_commit_properties(table: DeltaTable) -> PostCommitHookProperties:
    """Returns delta-rs' post-commit settings for a commit on the open version, so that it writes a checkpoint if one is
    due.

    Expired commits are removed only together with a checkpoint, as Delta's own writers do. By default, delta-rs lists
    the complete log after every commit: half a million objects for a table with a commit every five seconds and a month
    of log.
    """
    # delta-rs counts commits from 1, while versions count from 0.
    is_checkpoint_due = (table.version() + 2) % checkpoint_interval(table.metadata().configuration) == 0
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None if is_checkpoint_due else False)


def checkpoint_interval(configuration: Mapping[str, Any]) -> int:
    """Returns the number of commits per checkpoint of a table with these properties."""
    return int(configuration.get("delta.checkpointInterval") or _DEFAULT_CHECKPOINT_INTERVAL)


def raise_owner_epoch(table: DeltaTable, owner: Step, *, user_metadata: str) -> CommitOutcome:
    """Stores the owner epoch in the table, so that commits with a lower epoch fail from then on. Idempotent."""
    return commit_step(table, [], step=owner, user_metadata=user_metadata)


def check_owner_epoch(table: DeltaTable, owner: Step) -> None:
    """Raises if the table's snapshot has a higher owner epoch than this owner.

    Raises:
        FencedError: OWNER_FENCED.
    """
    current = transaction_version(table, owner.app_id)
    if current is not None and current > owner.version:
        raise FencedError(
            "OWNER_FENCED", f"{table.table_uri}: owner epoch {current} has taken over from epoch {owner.version}."
        )


def _refused_commit_error(table: DeltaTable, error: Exception) -> ContractError:
    return ContractError("COMMIT_REFUSED", f"{table.table_uri}: delta-rs cannot commit to this table: {error}.")
