"""A pipeline with feeds over a real Delta table, a recording receiver, and a slow oracle."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.feeds import FeedRecord, FeedRecords
from deltaworks.feeds.messages import DeadReason, Message
from deltaworks.feeds.process import Feed
from deltaworks.feeds.sinks.base import SendOutcome, Sink
from deltaworks.specs.feeds import FeedSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec
from deltaworks.testing import catalog_of, declare_table, local_storage, pipeline_spec, present, write_files

DAY = dt.date(2026, 3, 1)
SCHEMA = pa.schema(
    [("event_date", pa.date32()), ("country", pa.string()), ("turnover", pa.decimal128(12, 2)), ("orders", pa.int64())]
)


def declared(feed: Mapping[str, Any] | None = None, **more: Any) -> PipelineSpec:
    """A shop with the gold table `turnover`, a view of it, and one feed that `feed` overrides."""
    feeds = {
        "name": "offers",
        "reads": "turnover",
        "key": ["event_date", "country"],
        "from": "all",
        "to": {"kind": "sqs", "queue_url": "http://127.0.0.1:1/queue"},
    }
    return pipeline_spec(
        declare_table("placed", "order_id string"),
        event={"name": {"path": "kind"}, "time": {"path": "at", "unit": "iso8601"}, "id": ["order_id"]},
        gold={"tables": [{"name": "turnover", "sql": "t.sql", "reads": ["placed"], "partition_by": "event_date"}]},
        views=[{"name": "totals", "sql": "totals.sql", "reads": ["turnover"]}],
        **{"feeds": [{**feeds, **(feed or {})}]} | more,
    )


@dataclass
class Receiver:
    """A sink that records accepted messages. `faults` is called with each message first and returns its result."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    faults: Callable[[Message], tuple[DeadReason, str] | str | None] = lambda message: None
    calls: int = 0

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        self.calls += 1
        outcome = SendOutcome()
        for message in messages:
            fault = self.faults(message)
            if isinstance(fault, tuple):
                outcome.rejected[message.id] = fault
            elif fault is not None:
                outcome.failed[message.id] = fault
            else:
                self.messages.append(json.loads(message.body))
        return outcome

    def close(self) -> None: ...

    def received(self) -> list[dict[str, Any]]:
        """Messages since the last call."""
        messages, self.messages = self.messages, []
        return messages


def applied(messages: Iterable[Mapping[str, Any]], key: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The slow oracle: the rows after applying each message in order."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for message in messages:
        place = tuple(message["key"][name] for name in key)
        if message["op"] == "delete":
            rows.pop(place, None)
        else:
            rows[place] = message["row"]
    return rows


class FeedHarness:
    """The lake, its only gold table, and the table's feed."""

    def __init__(self, root: Path, spec: PipelineSpec | None = None, *, messaging: AwsSpec | None = None) -> None:
        self.root = root
        self.spec = spec or declared()
        storage = local_storage(root / "lake")
        self.catalog = catalog_of(root, self.spec, messaging=messaging or {})
        self.objects: ObjectStore = open_objects(storage)
        self.uri = f"{root}/lake/{paths.table('shop', 'turnover')}"
        totals = "SELECT country, sum(turnover) AS turnover FROM turnover GROUP BY country"
        write_files(root, {"include/pipelines/shop/totals.sql": totals})

    @property
    def declaration(self) -> FeedSpec:
        return self.spec.feeds[0]

    @property
    def records(self) -> FeedRecords:
        return FeedRecords(self.objects, "shop", self.declaration.name)

    @property
    def record(self) -> FeedRecord:
        return present(self.records.read())

    def feed(self, receiver: Sink, *, pause: Callable[[float], None] = lambda seconds: None) -> Feed:
        return Feed(self.catalog, self.spec, self.declaration, self.objects, receiver, pause=pause)

    def rebuild(self, day: int, rows: Mapping[str, int]) -> None:
        """Replaces the partition of a day by the orders of each country, like a gold build."""
        date = DAY + dt.timedelta(days=day)
        table = pa.table(
            {
                "event_date": [date] * len(rows),
                "country": list(rows),
                "turnover": [None] * len(rows),
                "orders": list(rows.values()),
            },
            schema=SCHEMA,
        )
        self.write(table, predicate=f"event_date = '{date}'")

    def write(self, rows: pa.Table, *, predicate: str | None = None) -> None:
        if not DeltaTable.is_deltatable(self.uri):
            write_deltalake(self.uri, SCHEMA.empty_table(), partition_by=["event_date"])
        write_deltalake(self.uri, rows, mode="overwrite" if predicate else "append", predicate=predicate)

    def rows(self, key: Sequence[str] = ("event_date", "country")) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The table's rows in a receiver's form."""
        if not DeltaTable.is_deltatable(self.uri):
            return {}
        listed = DeltaTable(self.uri).to_pyarrow_table().to_pylist()
        plain = [json.loads(json.dumps(row, default=str)) for row in listed]
        return {tuple(row[name] for name in key): row for row in plain}
