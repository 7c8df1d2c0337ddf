"""A pipeline with a table of each kind, rows of two people, and all operations that restore rows."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.prepared import PreparedTable
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.ledger import owner_step
from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.parse import ParserInputs
from deltaworks.privacy.erasure.erasure_run import ErasureRun
from deltaworks.privacy.erasure.requests import Namespace, open_namespace, receive_request, token_of
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.recovery.repair.log_gap import repair_log
from deltaworks.recovery.repair.lost_files import repair_files, repair_table
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.run import Reprocess
from deltaworks.recovery.reprocess.selection import Selection
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.recovery.start_over import start_over
from deltaworks.sources.base import ObjectSlice
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import catalog_of, declare_table, local_storage, present
from tests.unit.recovery.restore.source_harness import SourceHarness, land_and_announce, parsed_rows

ANN, BOB = "ann", "bob"
BATCHES = (0, 1, 2, 3)
#: By kind the table of it.
KINDS = {
    "append": "orders",
    "keyed": "latest_orders",
    "latest": "orders_now",
    "mutable": "contacts",
    "quarantine": "quarantine",
}
_REQUESTS = {name: "string" for name in ("op", "id", "new_id", "name", "org_id")}
SPEC: dict[str, Any] = {
    "pipeline": "shop",
    "description": "orders",
    "owner": "tests",
    "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
    "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}},
    # Landed objects keep her, so that it is the list that keeps her out.
    "privacy": {
        "namespace": "players",
        "subject": "player",
        "erase": {"landing": "expire"},
        "fields": [{"path": "player", "action": "token", "as": "player"}],
    },
    "tables": [
        declare_table("orders", "player string", "amount int", when="order", keyed={"by": "player"}),
        declare_table(
            "contacts",
            *(
                f"{name} string from {path}"
                for name, path in (
                    ("org_id", "org"),
                    ("contact", "contact"),
                    ("origin_contact", "contact"),
                    ("player", "player"),
                )
            ),
            when="contact",
            mutable={"id": "contact", "origin": "origin_contact"},
        ),
        declare_table(
            "requests",
            *(f"{name} {kind}" for name, kind in _REQUESTS.items()),
            "fields map<string,string>",
            "seq long",
            when="request",
        ),
    ],
    "mutations": {"requests": "requests"},
    "live": [
        {
            "name": "orders_now",
            "reads": "orders",
            "kind": "latest",
            "key": ["player"],
            "keep": ["amount"],
            "expire_after_minutes": 30,
            "trigger_seconds": 5,
        }
    ],
    "maintenance": {"vacuum_dry_run": False},
}


def events(seq: int) -> list[dict[str, Any]]:
    """An order and a contact of each, and an order of each that fits in none."""
    at = 1_700_000_000 + seq
    return [
        event
        for player in (ANN, BOB)
        for event in (
            {"name": "order", "time": at, "player": player, "amount": seq},
            {"name": "contact", "time": at, "player": player, "org": "acme", "contact": f"{player}-{seq}"},
            {"name": "order", "time": at, "player": player, "amount": "many"},
        )
    ]


def no_session() -> SparkSession:
    raise AssertionError("Spark was asked for")


@dataclass
class RestoreHarness(SourceHarness):
    """Batches of both people; Ann is erased behind them."""

    @classmethod
    def made(cls, root: Path) -> RestoreHarness:
        stage = cls(root, PipelineSpec.model_validate(SPEC))
        stage.land_all(*BATCHES)
        stage.follow()
        return stage

    def catalog(self) -> Catalog:
        plain, keys = super().catalog(), {"kind": "keyring", "folder": f"{self.root}/lake-keyring"}
        privacy = {"keys": keys, "vault": local_storage(self.root / "lake-vault")}
        return catalog_of(self.root, *plain.pipelines.values(), lake=plain.environment.lake, privacy=privacy)

    @property
    def namespace(self) -> Namespace:
        return open_namespace(self.catalog(), "players")

    def follow(self) -> None:
        """Bring the keyed and the live table to what is in their history, as a stream that starts does."""
        self.epoch += 1
        tables = KeyedTables(None, self.lake, self.spec, owner=owner_step("shop", self.epoch))
        for name in tables.names:
            tables.catch_up(name)

    def ask(self) -> None:
        """Ann asks to be erased."""
        space = self.namespace
        token = token_of(space, kind="player", value=ANN)
        receive_request(space, token, received_at=dt.datetime.now(dt.UTC), by="tests")

    def advance(self) -> tuple[str, str]:
        (result,) = ErasureRun(self.namespace, now=dt.datetime.now(dt.UTC)).run()
        return result.state, result.waiting_for

    def erase(self) -> None:
        self.ask()
        assert self.advance()[0] == "purged"

    def of(self, who: str, table: str) -> int:
        """How many rows name somebody."""
        search = TokenSearch([token_of(self.namespace, kind="player", value=who)])
        rows = self.lake.rows(paths.table("shop", table))
        return 0 if rows is None else sum(int(search.matching_rows(batch).sum()) for batch in rows.to_batches())

    def folder(self, table: str) -> Path:
        return self.root / "lake" / paths.table("shop", table)

    def _announce_and_parse(self, seq: int) -> tuple[PreparedTable, ...]:
        body = land_and_announce(self.root, self.lake, seq, events(seq))
        stamp = BatchMetadata(seq, 1_700_000_000_000_000, self.spec.fingerprint())
        parser = ParserInputs.pin(self.spec, self.storage).create_parser(self.spec)
        return tuple(self._written(name, rows) for name, rows in parsed_rows(parser, seq, body, stamp))

    # The ways back.

    def restore(self, table: str, repair: Any = "none") -> None:
        before = present(self.lake.open(paths.table("shop", table))).version() - 1
        request = TableRestoreRequest(point=RestorePoint(version=before), max_rows=1_000, repair=repair)
        TableRestore(self.catalog(), "shop", table).run(request)

    def recover_files(self, table: str) -> None:
        """A file of the newest version is deleted by hand."""
        Path(present(self.lake.open(paths.table("shop", table))).file_uris()[0].removeprefix("file://")).unlink()
        repair_files(self.catalog(), "shop", table, dry_run=False, max_rows=1_000)

    def recover_table(self, table: str) -> None:
        """The log is deleted, and the files of all versions are left."""
        shutil.rmtree(self.folder(table) / "_delta_log")
        repair_table(self.catalog(), "shop", table, dry_run=False)

    def recover_log(self, table: str) -> None:
        """The commit of the purge is lost, with a batch behind it."""
        purge = present(self.lake.open(paths.table("shop", table))).version()
        self.land_object(self.processor(), max(BATCHES) + 1)
        (self.folder(table) / "_delta_log" / f"{purge:020}.json").unlink()
        repair_log(self.catalog(), "shop", table, dry_run=False, max_rows=1_000)

    def reprocess(self, *tables: str, shadow: bool = False) -> None:
        request = ReprocessRequest(selection=Selection(from_start=True), tables=tables, shadow=shadow)
        Reprocess(no_session, self.catalog(), "shop").run("r1", request)

    def start_over(self) -> None:
        start_over(self.catalog(), "shop", dry_run=False, max_rows=1_000)
        processor = self.processor(generation=2)
        for seq in BATCHES[1:]:
            self.land_again(processor, max(BATCHES) + seq, seq)

    def land_again(self, processor: Any, batch_id: int, seq: int) -> None:
        """A batch of the second generation, that reads an object of the first."""
        body = (self.root / "landing" / f"f{seq}.json").read_bytes()
        stamp = BatchMetadata(batch_id, 1_700_000_000_000_000, self.spec.fingerprint())
        parser = ParserInputs.pin(self.spec, self.storage).create_parser(self.spec)
        from tests.unit.engine.batch_records import prepared_batch

        shares = tuple(self._written(name, rows) for name, rows in parsed_rows(parser, seq, body, stamp))
        PipelineHome(self.objects, "shop").prepared.get_or_create(prepared_batch(batch_id, generation=2, tables=shares))
        processor.process(ObjectSlice([], [], {}, opener=lambda reference: reference), batch_id)

    def roll_back(self) -> None:
        """All tables go back to batch 2, together."""
        start_over(self.catalog(), "shop", dry_run=False, max_rows=1_000, restore_point=RestorePoint(batch=2))
