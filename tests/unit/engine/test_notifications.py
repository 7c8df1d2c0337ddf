"""A notification table announces every committed row once, and no row before it is committed."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.engine import commit as commit_phase
from deltaworks.engine import notifications
from deltaworks.engine.fan_out import partition_columns, write_payloads
from deltaworks.engine.notifications import with_notifications
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ContractError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.reprocess.plan import reject_mutable
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.steps import REPLAYS_TABLE
from deltaworks.testing import append_rows, declare_pipeline, declare_table, present
from tests.crashes import Crash
from tests.examples import examples
from tests.unit.engine.batch_records import asked_turn
from tests.unit.engine.hold_harness import Harness, declared
from tests.unit.recovery.replay_harness import ReplayHarness as ReplayStage

STAMP = BatchMetadata(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
OBJECTS = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}
ORG, DAY = {"name": "org_id", "path": "org", "type": "string"}, {"name": "day", "path": "day", "type": "date"}
VISITS: dict[str, Any] = declare_pipeline(
    declare_table(
        "visits",
        ORG,
        DAY,
        "contact string",
        "origin string from contact",
        when={"kind": "visit"},
        partition_by=["org_id"],
        mutable={"id": "contact", "origin": "origin"},
    ),
    declare_table(
        "requests",
        ORG,
        *(f"{name} string" for name in ("op", "id", "new_id", "name")),
        "fields map<string,string>",
        "seq long",
        when={"kind": "request"},
    ),
    declare_table("news", ORG, DAY, announces={"table": "visits"}, partition_by=["org_id", "ingested_date"]),
    source={"kind": "kafka", "bootstrap_servers": "nowhere:1", "topics": "visits"},
    event={"name": {"path": "kind"}, "time": {"path": "at"}, "id": ["id"]},
    mutations={"requests": "requests", "notifications": "news"},
)


def visit(number: int, **changes: Any) -> dict[str, Any]:
    event = {"kind": "visit", "at": "2026-01-02T03:04:05Z", "id": f"v{number}", "org": f"o{number % 3}"}
    return {**event, "day": f"2026-01-{1 + number % 2:02}", "contact": f"c{number}", **changes}


def notified_keys(news: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter((row["org_id"], row["day"], row["batch"], key) for row in news for key in row["keys"])


def test_every_row_of_a_task_is_announced_once(tmp_path: Path) -> None:
    spec = PipelineSpec.model_validate(VISITS)
    events = [visit(number) for number in range(50)] + [visit(50, contact=7), {"kind": "visit"}]
    payloads = [Payload(seq, "k", json.dumps(event).encode()) for seq, event in enumerate(events)]
    by_table = partition_columns(spec)
    where = FileTarget(None, {name: str(tmp_path / name) for name in by_table}, by_table)

    written = write_payloads(payloads, spec, STAMP, where).files

    news = [
        row | file.partition
        for file in written["news"]
        for row in pa.parquet.read_table(tmp_path / "news" / file.path, partitioning=None).to_pylist()
    ]
    day = dt.date(2026, 1, 1)
    assert notified_keys(news) == Counter((f"o{n % 3}", day + dt.timedelta(n % 2), 7, f"v{n}") for n in range(50))
    assert len(news) == 6
    assert {(row["change"], row["batch_kind"], row["data_version"]) for row in news} == {("insert", "stream", None)}
    assert {row["ingested_date"] for row in news} == {"2023-11-14"}
    assert {row["ingested_at"] for row in news} == {dt.datetime.fromtimestamp(1_700_000_000, tz=dt.UTC)}
    assert sum(file.rows for file in written["quarantine"]) == 2


def test_new_rows_are_marked_as_unmutated(tmp_path: Path) -> None:
    spec = PipelineSpec.model_validate(VISITS)
    by_table = partition_columns(spec)
    where = FileTarget(None, {name: str(tmp_path / name) for name in by_table}, by_table)

    output = write_payloads([Payload(1, "k", json.dumps(visit(1)).encode())], spec, STAMP, where)

    (file,) = output.files["visits"]
    assert json.loads(file.stats)["nullCount"].items() >= {"_deleted": 1, "_mutation": 1}.items()
    (row,) = pa.parquet.read_table(tmp_path / "visits" / file.path, partitioning=None).to_pylist()
    assert list(row)[-2:] == ["_deleted", "_mutation"]


@given(
    keys=st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["k", "l", None])), max_size=40),
    most=st.integers(1, 5),
    at_once=st.integers(1, 9),
)
def test_every_key_is_announced_once_however_rows_are_split(
    keys: list[tuple[str | None, str | None]], most: int, at_once: int
) -> None:
    spec = PipelineSpec.model_validate(VISITS)
    schema = arrow_schema(spec.table("visits").column_types())
    rows = [
        {"org_id": org, "event_id": key, "_batch_id": 1 + index % 2, "_ingested_at": dt.datetime(2026, 1, 1)}
        for index, (org, key) in enumerate(keys)
    ]
    parts = [
        ("visits", pa.Table.from_pylist(rows[start : start + at_once], schema=schema))
        for start in range(0, len(rows), at_once)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notifications, "KEYS_PER_NOTIFICATION", most)
        patch.setattr(notifications, "BUFFERED_ROWS", 2 * at_once)
        given_back = list(with_notifications(spec, parts))

    news = [row for name, part in given_back if name == "news" for row in part.to_pylist()]
    assert notified_keys(news) == Counter(
        (row["org_id"], None, row["_batch_id"], row["event_id"]) for row in rows if row["event_id"]
    )
    assert all(len(row["keys"]) <= most for row in news)
    assert sum(part.num_rows for name, part in given_back if name == "visits") == len(rows)


NEWS = declare_table(
    "news", announces={"table": "orders", "key": "event_name"}, columns=[], partition_by=["ingested_date"]
)
TABLES = ("orders", "clicks", "news", "quarantine")


def announcing_stage(root: Path) -> Harness:
    shop = declared()
    return Harness(root, PipelineSpec.model_validate(shop | {"tables": [NEWS, *shop["tables"]]}))


def landed(harness: Harness, table: str) -> Counter[int]:
    key = paths.table("shop", table)
    if not (harness.root / "lake" / key / "_delta_log").is_dir():
        return Counter()  # broken by the test: what it holds is looked at once it is mended
    column = "batch" if table == "news" else "_seq"
    return Counter(present(harness.lake.rows(key, columns=[column])).column(column).to_pylist())


class WatchedPipeline:
    """A harness that checks that `news` never announces rows missing in `orders`."""

    def __init__(self, root: Path) -> None:
        self.harness = announcing_stage(root)
        self.crash_at = ""
        self.processor = self.start()
        self.batches = 0
        self._mends: dict[str, Callable[[], None]] = {}

    def start(self) -> Any:
        return self.harness.processor(fault=self._reached)

    def _reached(self, point: str) -> None:
        self.check()
        if point == self.crash_at:
            self.crash_at = ""
            raise Crash(point)

    def check(self) -> None:
        if "orders" not in getattr(self, "_mends", {}):
            assert landed(self.harness, "news").keys() <= landed(self.harness, "orders").keys()

    def land(self) -> None:
        self.harness.prepare(self.batches, tables=TABLES)
        self.batches += 1
        try:
            self.processor.complete_prepared()
        except Crash:
            self.restart()

    def restart(self) -> None:
        try:
            self.processor = self.start()
        except Crash:
            self.processor = self.start()
        self.processor.complete_prepared()

    def break_(self, table: str) -> None:
        if table not in self._mends:
            self._mends[table] = self.harness.break_table(table)

    def repair(self, table: str) -> None:
        self._mends.pop(table, lambda: None)()

    def resume(self, table: str) -> None:
        PipelineHome(self.harness.objects, "shop").held.request_resume(table, by="ada")
        self.processor.serve_requests()

    def ask(self, table: str) -> None:
        self.harness.objects.put(paths.turn_request("shop", table), asked_turn(table).encode())
        self.processor.serve_requests()

    def release_turn(self, table: str) -> None:
        self.harness.objects.delete(paths.turn_request("shop", table))
        self.processor.serve_requests()


EVENTS = [
    ("land", ()),
    ("land", ()),
    ("restart", ()),
    *(
        (name, (table,))
        for table in ("orders", "news")
        for name in ("break_", "repair", "resume", "ask", "release_turn")
    ),
    *(("crash", (point,)) for point in ("committed:orders", "committed", "caught_up:orders", "caught_up:news")),
]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", (0.0,))


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(EVENTS), min_size=4, max_size=16))
def test_rows_are_never_announced_before_they_are_committed_and_always_once(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, tuple[str, ...]]]
) -> None:
    shop = WatchedPipeline(tmp_path_factory.mktemp("story"))
    ending = [(name, (table,)) for table in ("orders", "news") for name in ("repair", "release_turn")]
    for name, arguments in [*story, *ending, ("resume", ("orders",)), ("resume", ("news",)), ("restart", ())]:
        if name == "crash":
            (shop.crash_at,) = arguments
        else:
            try:
                getattr(shop, name)(*arguments)
            except Crash:
                shop.restart()
        shop.check()

    for table in ("orders", "news", "clicks"):
        assert landed(shop.harness, table) == Counter(dict.fromkeys(range(shop.batches), 2)), table
    assert PipelineHome(shop.harness.objects, "shop").held.read() == {}


def test_notifications_of_a_table_wait_while_another_job_writes_it(tmp_path: Path) -> None:
    shop = WatchedPipeline(tmp_path)
    shop.land()
    shop.ask("orders")
    shop.land()

    records = PipelineHome(shop.harness.objects, "shop").held.read()
    assert {name: record.reason for name, record in records.items()} == {"orders": "write_turn", "news": "announces"}
    assert landed(shop.harness, "news") == landed(shop.harness, "orders") == Counter({0: 2})
    assert landed(shop.harness, "clicks") == Counter({0: 2, 1: 2})
    shop.release_turn("orders")

    assert landed(shop.harness, "news") == landed(shop.harness, "orders") == Counter({0: 2, 1: 2})
    assert PipelineHome(shop.harness.objects, "shop").held.read() == {}


def test_a_failing_table_holds_its_notification_table_in_the_same_batch(tmp_path: Path) -> None:
    shop = WatchedPipeline(tmp_path)
    shop.land()
    shop.break_("orders")
    shop.land()

    assert landed(shop.harness, "news") == Counter({0: 2})
    shop.repair("orders")
    shop.resume("orders")

    assert landed(shop.harness, "news") == landed(shop.harness, "orders") == Counter({0: 2, 1: 2})


def test_a_crash_between_rows_and_notifications_announces_them_once(tmp_path: Path) -> None:
    shop = WatchedPipeline(tmp_path)
    shop.crash_at = "committed:orders"
    shop.harness.prepare(0, tables=TABLES)

    with pytest.raises(Crash):
        shop.processor.complete_prepared()
    assert landed(shop.harness, "orders") == Counter({0: 2})
    assert landed(shop.harness, "news") == Counter()
    shop.restart()

    assert landed(shop.harness, "news") == landed(shop.harness, "orders") == Counter({0: 2})


def test_replayed_rows_are_announced_after_they_are_committed(tmp_path: Path) -> None:
    shop = ReplayStage(tmp_path)
    lenient = PipelineSpec.model_validate(VISITS | {"source": OBJECTS})
    strict_visits = {**VISITS["tables"][0], "rules": [{"name": "known", "check": "contact != 'c1'"}]}
    strict = PipelineSpec.model_validate(VISITS | {"source": OBJECTS, "tables": [strict_visits, *VISITS["tables"][1:]]})
    shop.ingest(strict, *(json.dumps(visit(number)).encode() for number in range(3)))
    assert [row["contact"] for row in shop.rows("visits")] == ["c0", "c2"]
    seen: list[tuple[str, int]] = []

    def reached(point: str) -> None:
        seen.append((point, len(shop.rows("visits"))))

    done = replay_quarantine(shop.catalog(lenient), "shop", QuarantineFilter(), dry_run=False, fault=reached)

    assert done.landed == 1
    assert [row["contact"] for row in shop.rows("visits")] == ["c0", "c1", "c2"]
    news = present(shop.lake.rows(paths.table("shop", "news")))
    assert notified_keys(news.to_pylist())[("o1", dt.date(2026, 1, 2), 0, "v1")] == 1
    points = [point for point, _ in seen]
    assert (
        points.index("committed:visits") < points.index("committed:news") < points.index(f"committed:{REPLAYS_TABLE}")
    )


@pytest.mark.parametrize("tables", [(), ("visits",)])
def test_mutated_rows_are_not_replaced_by_arriving_ones(tables: tuple[str, ...]) -> None:
    spec = PipelineSpec.model_validate(VISITS | {"source": OBJECTS})

    with pytest.raises(ContractError) as refused:
        reject_mutable(spec, tables)

    assert refused.value.condition == "REPROCESS_MUTABLE"
    assert "visits of 'shop'" in refused.value.message
    reject_mutable(spec, ("requests",))


def test_tables_derived_from_mutation_requests_start_over_with_them(tmp_path: Path) -> None:
    shop = ReplayStage(tmp_path)
    spec = PipelineSpec.model_validate(VISITS | {"source": OBJECTS})
    shop.ingest(spec, json.dumps(visit(1)).encode())
    key, schema = paths.table("shop", "names"), arrow_schema(NAMES_COLUMNS)
    append_rows(shop.lake, key, [{"org_id": "o", "id": "a", "name": "Ada"}], schema=schema, partition_by=["org_id"])

    done = start_over(shop.catalog(spec), "shop", dry_run=False, max_rows=10)

    assert {each.table: each.rows for each in done.tables}["names"] == 1
    assert present(shop.lake.rows(key)).num_rows == 0
