"""Disables single protections of a driver, so that tests can show which harm each one prevents.

Each one is a change of product functions at run time, made by the test's entry script before the run is built.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deltaworks.events.lookup_databases import AddressLookup, PinnedDatabases
from deltaworks.specs.storage import StorageSpec

OFF = "DELTAWORKS_TEST_OFF"
CLOCK = "DELTAWORKS_TEST_CLOCK_SECONDS"
#: Log store class of a driver without `put_read_back`; the harness compiles it.
FORGETFUL = "ForgetfulLogStore"


def switch_off(names: Sequence[str]) -> None:
    """Disables the named protections.

    Raises:
        KeyError: no protection has this name.
    """
    for name in names:
        if name != "guard":
            PROTECTIONS[name]()


def before_job(names: Sequence[str]) -> None:
    """Disables the one protection that takes effect before the job's `main`."""
    if "guard" in names:
        import deltaworks.control.job

        deltaworks.control.job.start_parent_watchdog = lambda **_: None  # type: ignore[assignment]


def _replace(owner: Any, name: str, replacement: Any) -> None:
    """Replaces an attribute that must exist: a patch of a renamed attribute would prove nothing."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: the seam has moved")
    setattr(owner, name, replacement)


def _transactions() -> None:
    """A step is committed, and repeated, without a look-up whether it has already landed."""
    from deltaworks.tables import commit

    original = commit.transaction_version

    def blind(table: Any, app_id: str) -> int | None:
        is_step = re.search(r"/g\d+/", app_id) is not None
        if is_step and sys._getframe(1).f_code.co_qualname.startswith("commit_step."):
            return None
        return original(table, app_id)

    _replace(commit, "transaction_version", blind)


def _spark_transactions() -> None:
    """Spark's appends and merges carry no transaction, and no look-up checks whether they have landed."""
    from pyspark.sql import DataFrameWriter

    from deltaworks.engine import live, writers

    plain_option, plain_announce = DataFrameWriter.option, live._set_transaction

    def option(self: Any, key: str, value: Any) -> Any:
        return self if key in ("txnAppId", "txnVersion") else plain_option(self, key, value)

    def announce(session: Any, step: Any, made: str) -> None:
        plain_announce(session, step, made)
        session.conf.unset(live._TRANSACTION_APP)
        session.conf.unset(live._TRANSACTION_VERSION)

    _replace(DataFrameWriter, "option", option)
    _replace(live, "_set_transaction", announce)
    _replace(writers, "transaction_version", lambda table, app_id: None)


def _small_merges() -> None:
    """Disables no protection: all merges into live tables are done by Spark, even for few rows."""
    from deltaworks.engine import live

    _replace(live, "MAX_COLLECTED_ROWS", 0)


def _replacement_steps() -> None:
    """Replacements of rows are committed without a look-up whether their step has already landed."""
    from deltaworks.tables import files_commit

    _replace(files_commit, "is_step_committed", lambda state, step: False)


def _put_read_back() -> None:
    """After a failed put, Spark's log store does not read back which writer's commit is in the log."""
    from deltaworks.specs import spark_conf

    spark_conf.LOG_STORE_S3A = FORGETFUL
    spark_conf.SESSION_SETTINGS[spark_conf.S3A_LOG_STORE_KEY] = (FORGETFUL, "taken away by a test")


def _prepared() -> None:
    """Batches are not prepared durably: every attempt writes and commits its own files."""
    from deltaworks.control.records.prepared import PreparedBatches

    _replace(PreparedBatches, "read", lambda *_: None)
    _replace(PreparedBatches, "get_or_create", lambda _, batch: batch)


def _ledger() -> None:
    """The ledger is not checked before a batch lands."""
    from deltaworks.engine.batches import BatchProcessor

    nothing = property(lambda _: None, lambda _, value: None)
    # An instance attribute of each processor, which the class does not have.
    BatchProcessor._last_completed = nothing  # type: ignore[assignment]


def _owner_epoch() -> None:
    """Owner epochs are neither raised nor compared."""
    from deltaworks.engine import table_set, writers
    from deltaworks.tables import commit

    _replace(table_set, "check_owner_epoch", lambda *_: None)
    _replace(writers, "check_owner_epoch", lambda *_: None)
    _replace(commit, "check_owner_epoch", lambda *_: None)
    _replace(table_set.TableSet, "fence", lambda *_: None)


def _lease_watch() -> None:
    """A lost lease does not end the process: only the epoch in the tables separates two owners."""
    from deltaworks.engine.runner import IngestRun

    _replace(IngestRun, "_lease_lost", staticmethod(lambda *_: None))


def _same_snapshot() -> None:
    """The table is reopened between the look-up of a transaction and the commit."""
    from deltalake import DeltaTable

    original = DeltaTable.create_write_transaction

    def from_a_newer_one(self: DeltaTable, *positional: Any, **named: Any) -> Any:
        self.update_incremental()
        return original(self, *positional, **named)

    _replace(DeltaTable, "create_write_transaction", from_a_newer_one)


def _lease() -> None:
    """Every process gets the lease immediately."""
    from deltaworks.control.locks.lease import Lease

    _replace(Lease, "_is_free", staticmethod(lambda _: True))


def _monotonic_lease() -> None:
    """The lease's age is computed from its timestamp and the local wall clock."""
    from deltaworks.control import clock
    from deltaworks.control.locks.lease import Lease, LeaseRecord

    def is_free(found: Any) -> bool:
        record = LeaseRecord.decode_or_none(found.data)
        written = clock.parse_iso(record.written_at)
        return record.released or written is None or (clock.utc_now() - written).total_seconds() > 30

    _replace(Lease, "_is_free", staticmethod(is_free))


def _ledger_offsets() -> None:
    """A lost checkpoint is not detected: Spark counts batches from 0 again and reuses old ids."""
    from deltaworks.control.records.generations import GenerationStore
    from deltaworks.engine.batches import BatchProcessor

    _replace(GenerationStore, "_is_lost", lambda *_: False)
    _replace(BatchProcessor, "_retire_checkpoint", lambda *_: None)


def _stop_flag() -> None:
    """The stop flag is ignored."""
    from deltaworks.control.health.heartbeat import StopFlag

    _replace(StopFlag, "read", lambda _: None)


def _quarantine() -> None:
    """Rejected events are dropped."""
    from deltaworks.engine.batches import BatchProcessor

    original = BatchProcessor._write

    def without_quarantine(self: BatchProcessor, *positional: Any) -> Any:
        written = original(self, *positional)
        written.files.pop("quarantine", None)
        return written

    _replace(BatchProcessor, "_write", without_quarantine)


def _one_commit_a_table() -> None:
    """Each file of a table is committed separately, all under the batch's one transaction."""
    from deltaworks.engine.writers import FanOutWriter

    original = FanOutWriter.commit

    def one_by_one(self: FanOutWriter, batch: Any, share: Any, **options: Any) -> Any:
        for file in share.files:
            outcome = original(self, batch, share.replace(files=(file,)), **options)
        return outcome

    _replace(FanOutWriter, "commit", one_by_one)


def _whole_objects() -> None:
    """A control object on local disk is written in place, not atomically."""
    from deltaworks.control.objects import LocalObjects

    def in_place(self: LocalObjects, key: str, data: bytes) -> bool:
        target = self._root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb", buffering=0) as file:
            file.write(data)
        return True

    _replace(LocalObjects, "put_if_absent", in_place)


def _suspension() -> None:
    """A failing table fails the batch for all tables."""
    from deltaworks.engine.held_tables import TableHolds

    def insist(_: TableHolds, table: str, batch_id: int, error: Exception) -> None:
        raise error

    _replace(TableHolds, "suspend", insist)


def _checkpoint_check() -> None:
    """Spark's checkpoint is not checked before the query starts."""
    from deltaworks.engine import recovery as run_start

    _replace(run_start, "reject_damaged_checkpoint", lambda *_: None)


def _ledger_check() -> None:
    """The ledger is checked neither for missing batches nor for the checkpoint under which a batch was prepared."""
    from deltaworks.engine import recovery as run_start
    from deltaworks.engine.batches import BatchProcessor

    _replace(run_start, "reject_lost_ledger", lambda *_, **__: None)
    _replace(BatchProcessor, "_retire_checkpoint", lambda *_: None)


def _deaths() -> None:
    """A worker crash fails the batch like any other error; its payloads are not isolated."""
    from deltaworks.engine import fan_out

    _replace(fan_out, "crash_cause", lambda _: None)


def _gold_number() -> None:
    """A build of gold lands even if another build has landed since it was planned."""
    from deltaworks.gold import table_commit
    from deltaworks.tables import files_commit

    _replace(table_commit, "_idempotence_options", lambda _: {})
    _replace(files_commit, "is_step_committed", lambda *_: False)


@dataclass(frozen=True, slots=True)
class NewestDatabases(PinnedDatabases):
    """Enrichment databases of which every task opens the version that is current when it starts."""

    def reader(self, name: str) -> AddressLookup:
        return PinnedDatabases.open_lookup(
            PinnedDatabases.pin([name], StorageSpec.model_validate_json(self.storage)), name
        )


def _fixed_databases() -> None:
    """No database version is fixed for a batch."""
    from deltaworks.events import parse

    original = parse.pin_databases

    def unfixed(*positional: Any) -> NewestDatabases | None:
        fixed = original(*positional)
        return None if fixed is None else NewestDatabases(fixed.storage, fixed.variables, fixed.by_name)

    _replace(parse, "pin_databases", unfixed)


PROTECTIONS: dict[str, Callable[[], None]] = {
    "transactions": _transactions,
    "spark_transactions": _spark_transactions,
    "small_merges": _small_merges,
    "replacement_steps": _replacement_steps,
    "put_read_back": _put_read_back,
    "prepared": _prepared,
    "ledger": _ledger,
    "owner_epoch": _owner_epoch,
    "lease_watch": _lease_watch,
    "same_snapshot": _same_snapshot,
    "lease": _lease,
    "monotonic_lease": _monotonic_lease,
    "ledger_offsets": _ledger_offsets,
    "stop_flag": _stop_flag,
    "quarantine": _quarantine,
    "one_commit_a_table": _one_commit_a_table,
    "whole_objects": _whole_objects,
    "suspension": _suspension,
    "checkpoint_check": _checkpoint_check,
    "ledger_check": _ledger_check,
    "deaths": _deaths,
    "gold_number": _gold_number,
    "pin_databases": _fixed_databases,
}


def shift_clock(seconds: float) -> None:
    """Shifts this Python process's wall clock by `seconds`. Its monotonic clock and the JVM's clocks stay correct."""
    if not seconds:
        return
    from deltaworks.control import clock

    true_time, true_ns = time.time, time.time_ns
    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_ns() + int(seconds * 1e9)
    clock.utc_now = lambda: dt.datetime.fromtimestamp(time.time(), dt.UTC)
