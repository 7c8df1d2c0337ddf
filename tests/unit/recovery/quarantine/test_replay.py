"""Replays land rows that are now valid once, after any crash and in any number of runs; other rows stay open."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.throughput import read_throughput
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks import lease
from deltaworks.control.objects import open_objects
from deltaworks.control.records.held_tables import HeldTable
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ENTIRE_OBJECT
from deltaworks.recovery.quarantine import replay as quarantine_replay
from deltaworks.recovery.quarantine import replay_commit
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter, record_reprocessed
from deltaworks.recovery.quarantine.replay import ReplayResult, replay_quarantine
from deltaworks.recovery.quarantine.replay_commit import complete_prepared_replay
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.lake import Lake
from deltaworks.tables.protected_files import uncommitted_files
from deltaworks.tables.variant import encode_json
from deltaworks.testing import declare_table, present
from tests.crashes import Crash, crash_at
from tests.examples import examples
from tests.unit.recovery.replay_harness import ARRIVED_US, MADE_US, ReplayHarness

MakeSpec = Callable[..., PipelineSpec]
ALL = QuarantineFilter()
POINTS = ["files_written", "prepared", "committed:events", "committed:orders", "committed:quarantine_replays"]


@pytest.fixture
def without_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclusion among replays rests on no lease: what follows holds without it."""
    monkeypatch.setattr(quarantine_replay, "exclusive_reread", lambda home: contextlib.nullcontext())


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    return ReplayHarness(tmp_path)


def spec_with(make_spec: MakeSpec, level: str = "int", **changes: Any) -> PipelineSpec:
    """`level: int` is the mistake that `level: string` mends, or the other way round."""
    orders = declare_table("orders", f"level_{level} {level} from level", when="order")
    return make_spec(tables=[{"name": "events", "catch_all": True}, orders | changes.pop("orders", {})], **changes)


def event(level: Any, **fields: Any) -> bytes:
    return json.dumps({"name": "order", "time": 1_700_000_000, "level": level} | fields).encode()


def replay(stage: ReplayHarness, spec: PipelineSpec, wanted: QuarantineFilter = ALL, **options: Any) -> ReplayResult:
    return replay_quarantine(stage.catalog(spec), "shop", wanted, **({"dry_run": False} | options))


def test_undeclared_fields_of_a_replayed_row_are_in_its_variant(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    rest = {"evolve": "rescue", "keep_rest": "variant"}
    stage.ingest(spec_with(make_spec, orders=rest), event(1, color="blue") + event("one", color="red"))

    replay(stage, spec_with(make_spec, "string", orders=rest))

    assert [(row["level_string"], row["_rest"]) for row in stage.rows("orders")] == [
        (None, encode_json('{"color":"blue"}')),
        ("one", encode_json('{"color":"red"}')),
    ]


def test_what_has_landed_is_noted_by_when_it_was_quarantined_and_why(
    stage: ReplayHarness, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = dt.datetime.fromtimestamp(ARRIVED_US / 1_000_000, dt.UTC)
    monkeypatch.setattr(quarantine_replay, "utc_now", lambda: arrived + dt.timedelta(minutes=20))
    stage.ingest(spec_with(make_spec), event(1) + event("one") + event("two"), b"torn")
    objects, key = (
        open_objects(stage.environment.lake),
        paths.replayed_throughput(paths.pipeline_control("shop")),
    )

    replay(stage, spec_with(make_spec, "string"), dry_run=True)
    assert objects.get(key) is None
    for _ in range(2):
        replay(stage, spec_with(make_spec, "string"))

    ((at, noted),) = read_throughput(objects, key).spans.items()
    assert dt.timedelta() <= arrived - at < dt.timedelta(minutes=5)
    assert (noted.quarantined, noted.reasons) == (2, {("type_mismatch", "level"): 2}), "what is torn stays"


def test_rows_that_fit_now_land_in_all_their_tables_at_their_place(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event(1) + event("one") + event("two"), event(2) + event("three"))
    assert stage.open_places() == Counter([(1, 1), (1, 2), (2, 1)])

    result = replay(stage, spec_with(make_spec, "string"))

    assert (result.selected, result.landed, result.still_rejected, result.replays) == (3, 3, 0, 1)
    assert result.rows_by_table == {"events": 3, "orders": 3}
    assert not stage.open_places()
    everything = Counter([(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)])
    assert stage.places("orders") == stage.places("events") == everything
    (row,) = [row for row in stage.rows("orders") if (row["_seq"], row["_position"]) == (2, 1)]
    assert (row["level_string"], row["_batch_id"]) == ("three", 0)
    assert row["_ingested_at"].timestamp() * 1e6 > ARRIVED_US
    assert len(stage.rows("quarantine")) == 3, "rows of quarantine are never deleted"


def test_what_was_landed_is_not_selected_again(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one"))
    replay(stage, spec_with(make_spec, "string"))

    again = replay(stage, spec_with(make_spec, "string"))

    assert (again.selected, again.replays) == (0, 0)
    assert stage.places("orders") == Counter([(1, 0)])


def test_what_still_does_not_fit_stays_open_and_is_recorded(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event([1]) + b"{broken")

    result = replay(stage, spec_with(make_spec, "string"))

    assert (result.landed, result.still_rejected) == (1, 2)
    assert result.reasons == {"type_mismatch": 1, "malformed": 1}
    assert stage.open_places() == Counter([(1, 1), (1, 2)])
    recorded = {(row["_position"], row["outcome"]): row["table_names"] for row in stage.record()}
    assert recorded == {(0, "landed"): ["events", "orders"], (1, "still_rejected"): [], (2, "still_rejected"): []}


def test_a_dry_run_counts_and_writes_nothing(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event([1]))
    before = sorted(path for path in stage.landing.parent.rglob("*") if path.is_file())

    result = replay(stage, spec_with(make_spec, "string"), dry_run=True)

    assert (result.landed, result.still_rejected, result.replays) == (1, 1, 0)
    assert result.rows_by_table == {"events": 1, "orders": 1}
    assert sorted(path for path in stage.landing.parent.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("point", POINTS)
def test_a_replay_that_dies_anywhere_is_completed_by_the_next_and_doubles_nothing(
    stage: ReplayHarness, make_spec: MakeSpec, point: str
) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event("two") + event([1]))
    mended = spec_with(make_spec, "string")

    with pytest.raises(Crash):
        replay(stage, mended, slice_rows=2, fault=crash_at(point))
    result = replay(stage, mended, slice_rows=2)

    assert result.resumed_replays == (point not in ("files_written", "committed:quarantine_replays"))
    assert stage.places("orders") == stage.places("events") == Counter([(1, 0), (1, 1)])
    assert stage.open_places() == Counter([(1, 2)])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.usefixtures("without_lease")
def test_of_two_at_once_each_row_is_landed_by_one(stage: ReplayHarness, make_spec: MakeSpec, point: str) -> None:
    """The second runs whole while the first one is paused, which then wakes up."""
    stage.ingest(spec_with(make_spec), b"".join(event(f"l{number}") for number in range(6)))
    mended, others = spec_with(make_spec, "string"), []

    def meanwhile(reached: str) -> None:
        if reached == point and not others:
            others.append(replay(stage, mended, slice_rows=4))

    first = replay(stage, mended, slice_rows=4, fault=meanwhile)

    everything = Counter((1, position) for position in range(6))
    assert stage.places("orders") == stage.places("events") == everything
    assert not stage.open_places()
    assert others
    assert first.rows_by_table["orders"] + others[0].rows_by_table["orders"] == 6


@pytest.mark.usefixtures("without_lease")
def test_what_another_prepared_and_left_half_done_is_completed_as_it_was_prepared(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    stage.ingest(spec_with(make_spec), event("a") + event("b") + event("c"))
    mended, died = spec_with(make_spec, "string"), []

    def meanwhile(reached: str) -> None:
        if reached == "files_written" and not died:
            died.append(True)
            with pytest.raises(Crash):
                replay(stage, mended, limit=1, fault=crash_at("committed:events"))

    replay(stage, mended, fault=meanwhile)

    assert stage.places("orders") == stage.places("events") == Counter([(1, 0), (1, 1), (1, 2)])
    assert not stage.open_places()


def test_a_row_whose_place_a_table_has_already_is_not_added_again(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event("two"))
    mended = spec_with(make_spec, "string")
    stage.seq = 0
    stage.ingest(mended, event("one"))  # as if the object's beginning had been reprocessed
    assert stage.places("orders") == Counter([(1, 0)])

    result = replay(stage, mended)

    assert stage.places("orders") == stage.places("events") == Counter([(1, 0), (1, 1)])
    assert (result.landed, result.rows_by_table["orders"]) == (2, 1)
    assert not stage.open_places()


def test_a_row_that_came_another_way_after_the_replay_was_prepared_is_not_added_again(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event("two"), event("three"))
    mended = spec_with(make_spec, "string")

    def meanwhile(point: str) -> None:
        if point == "prepared":
            stage.seq = 0
            stage.ingest(mended, event("one"), event("three"))

    replay(stage, mended, fault=meanwhile)

    everything = Counter([(1, 0), (1, 1), (2, 0)])
    assert stage.places("orders") == stage.places("events") == everything
    assert {row["event_date"] for row in stage.rows("orders")} == {dt.date(2023, 11, 14)}
    assert not stage.open_places()


def test_what_a_reprocess_put_back_into_quarantine_is_open_again(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one"), event("two"))
    mended = spec_with(make_spec, "string")
    replay(stage, mended)
    for name in ("events", "orders"):  # as a reprocess with the old spec leaves it
        table = present(stage.lake.open(paths.table("shop", name)))
        table.delete("_seq = 1")

    for _ in range(2):
        record_reprocessed(stage.lake, "shop", [1, 7], reprocess_id="r1", fingerprint="fp")

    found = Quarantine(stage.lake, "shop")
    assert found.keys(ALL).column("_seq").to_pylist() == [1]
    assert found.closed_keys() == {(2, 0)}
    assert replay(stage, mended).landed == 1
    assert stage.places("orders") == stage.places("events") == Counter([(1, 0), (2, 0)])
    assert Quarantine(stage.lake, "shop").keys(ALL).num_rows == 0


def test_files_of_a_replay_left_half_done_are_kept_from_who_removes_files(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    stage.ingest(spec_with(make_spec), event("one"))
    mended, objects = spec_with(make_spec, "string"), open_objects(stage.environment.lake)

    with pytest.raises(Crash):
        replay(stage, mended, fault=crash_at("committed:events"))
    torn = uncommitted_files(stage.lake, PipelineHome(objects, "shop"))
    replay(stage, mended)

    committed = present(stage.lake.open(paths.table("shop", "orders")))
    assert [f"{paths.table('shop', 'orders')}/{path}" for path in torn["orders"].paths] == [
        uri.partition("/lake/")[2] for uri in committed.file_uris()
    ]
    assert uncommitted_files(stage.lake, PipelineHome(objects, "shop")) == {}


def test_a_reprocess_begins_with_what_a_replay_left_half_done(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    mended = spec_with(make_spec, "string")
    complete_prepared_replay(mended, stage.lake, PipelineHome.open(stage.lake.storage, "shop"))
    assert not stage.record(), "without replays there is nothing to complete"
    stage.ingest(spec_with(make_spec), event("one"))

    with pytest.raises(Crash):
        replay(stage, mended, fault=crash_at("committed:events"))
    complete_prepared_replay(mended, stage.lake, PipelineHome.open(stage.lake.storage, "shop"))

    assert stage.places("orders") == stage.places("events") == Counter([(1, 0)])
    assert not stage.open_places()


def test_a_replay_waits_for_a_reprocess(
    stage: ReplayHarness, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1)
    monkeypatch.setattr(replay_commit, "WAIT_SECONDS", 2)
    catalog = stage.catalog(spec_with(make_spec))

    held = replay_commit.exclusive_reread(PipelineHome.open(stage.lake.storage, "shop"))
    with held, pytest.raises(ConcurrencyError, match="LEASE_HELD"):
        replay_quarantine(catalog, "shop", ALL, dry_run=False)


def test_only_what_is_wanted_is_replayed(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    wrong, mended = spec_with(make_spec), spec_with(make_spec, "string")
    stage.ingest(wrong, event("one") + event("x", name="other") + b"{")
    stage.ingest(wrong, event("two"))

    def selected(**conditions: Any) -> list[tuple[int, int]]:
        keys = Quarantine(stage.lake, "shop").keys(QuarantineFilter(**conditions))
        return [(row["_seq"], row["_position"]) for row in keys.to_pylist()]

    assert selected(reasons=("type_mismatch",)) == [(1, 0), (2, 0)]
    assert selected(reasons=("malformed", "unknown_event")) == [(1, 1), (1, 2)]
    assert selected(events=("order",), to_batch=0) == [(1, 0)]
    assert selected(from_batch=1) == [(2, 0)]
    assert selected(from_date=dt.date(2023, 11, 15)) == []
    assert len(selected(to_date=dt.date(2023, 11, 14), fingerprint=wrong.fingerprint())) == 4
    assert replay(stage, mended, QuarantineFilter(from_batch=1)).landed == 1
    assert replay(stage, mended, limit=1).landed == 1
    assert selected(reasons=("type_mismatch",)) == []


def test_a_value_that_was_cut_is_read_from_its_object(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    short = {"quarantine": {"retain_raw_bytes": 20}}
    body = event(1) + event("é" * 40) + b'{"name": "order", "time": 1, "level": "\xff"}'
    stage.ingest(spec_with(make_spec, **short), body)

    result = replay(stage, spec_with(make_spec, "string", **short))

    assert (result.landed, result.still_rejected, result.not_replayable) == (1, 1, 0)
    assert [row["level_string"] for row in stage.rows("orders")] == [None, "é" * 40]


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda path: path.unlink(), "object_missing"),
        (lambda path: path.write_bytes(b"{}"), "object_changed"),
    ],
)
def test_a_value_that_was_cut_and_whose_object_is_gone_is_told(
    stage: ReplayHarness, make_spec: MakeSpec, spoil: Callable[[Path], None], cause: str
) -> None:
    stage.ingest(spec_with(make_spec, quarantine={"retain_raw_bytes": 20}), event("one") + event("two"))
    spoil(stage.landing / "k1")

    result = replay(stage, spec_with(make_spec, "string"))

    assert (result.landed, result.not_replayable, result.missing_causes) == (0, 2, {cause: 2})
    assert stage.open_places() == Counter([(1, 0), (1, 1)])


def test_elements_of_arrays_land_one_by_one_though_each_alone_reads_as_more(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    body = b'[{"name": "order", "time": 1, "level": "a"}, [{"name": "order", "time": 1, "level": "b"}]]'
    stage.ingest(spec_with(make_spec), body)

    result = replay(stage, spec_with(make_spec, "string"))

    assert (result.landed, result.reasons) == (1, {"not_an_object": 1})
    assert stage.places("orders") == Counter([(1, 0)])


class TestWholeObjects:
    """An object that could not be used is one row; once it can be, its events land and their misfits are rows."""

    def test_its_events_land_and_those_that_do_not_fit_are_rows_of_their_own(
        self, stage: ReplayHarness, make_spec: MakeSpec
    ) -> None:
        source = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}
        small = spec_with(make_spec, source=source | {"max_object_bytes": 10})
        stage.ingest(small, event(1) + event("one") + event(2))
        assert stage.open_places() == Counter([(1, -1)])

        result = replay(stage, spec_with(make_spec))

        assert (result.selected, result.landed, result.rows_by_table["quarantine"]) == (1, 1, 1)
        assert stage.places("orders") == Counter([(1, 0), (1, 2)])
        assert stage.open_places() == Counter([(1, 1)])
        assert replay(stage, spec_with(make_spec, "string")).landed == 1
        assert stage.places("orders") == Counter([(1, 0), (1, 1), (1, 2)])

    def test_one_that_still_cannot_be_used_stays(self, stage: ReplayHarness, make_spec: MakeSpec) -> None:
        spec = spec_with(make_spec)
        stage.ingest(spec, b"\x1f\x8bdamaged")

        result = replay(stage, spec)

        assert (result.not_replayable, result.missing_causes) == (1, {"object_unreadable": 1})
        assert stage.open_places() == Counter([(1, -1)])


def test_age_is_judged_by_the_first_arrival(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    event_spec = {
        "name": {"path": "name"},
        "time": {"path": "time", "unit": "epoch_seconds", "max_age_days": 1},
    }
    stage.ingest(spec_with(make_spec, event=event_spec), event("one") + event(1, time=1_600_000_000))

    result = replay(stage, spec_with(make_spec, "string", event=event_spec))

    assert (result.landed, result.still_rejected) == (1, 1)


class TestArrival:
    """Events that have no time get that of their arrival, the same from a replay as from the objects."""

    PLAIN: ClassVar[dict[str, Any]] = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}}

    def arriving(self, make_spec: MakeSpec, arrival: str = "when_missing", **changes: Any) -> PipelineSpec:
        time = self.PLAIN["time"] | {"arrival": arrival}
        return spec_with(make_spec, event=self.PLAIN | {"time": time}, **changes)

    @staticmethod
    def times(stage: ReplayHarness) -> dict[tuple[int, int], float]:
        return {(row["_seq"], row["_position"]): row["event_time"].timestamp() for row in stage.rows("orders")}

    BODIES = (event(1, time=None) + event(2, time=7.0), event(3, time=None) + event(4, time="soon") + event(5))
    MADE = MADE_US / 1e6
    TIMES: ClassVar[dict[tuple[int, int], float]] = {
        (1, 0): MADE + 1,
        (1, 1): 7.0,
        (2, 0): MADE + 2,
        (2, 1): MADE + 2,
        (2, 2): 1_700_000_000.0,
    }

    def test_a_replay_gives_what_the_stream_would_have_given(self, stage: ReplayHarness, make_spec: MakeSpec) -> None:
        stage.ingest(spec_with(make_spec), *self.BODIES)
        assert len(stage.rows("quarantine")) == 3

        replay(stage, self.arriving(make_spec))
        assert self.times(stage) == {place: at for place, at in self.TIMES.items() if place != (2, 1)}
        replay(stage, self.arriving(make_spec, "when_unusable"))

        assert self.times(stage) == self.TIMES

    def test_the_stream_itself_gives_the_same(self, stage: ReplayHarness, tmp_path: Path, make_spec: MakeSpec) -> None:
        other = ReplayHarness(tmp_path / "other")
        spec = self.arriving(make_spec, "when_unusable")
        for where in (stage, other):
            where.ingest(spec, *self.BODIES)

        assert self.times(stage) == self.times(other) == self.TIMES

    def test_a_value_that_was_cut_gets_it_from_its_object(self, stage: ReplayHarness, make_spec: MakeSpec) -> None:
        short = {"quarantine": {"retain_raw_bytes": 20}}
        stage.ingest(spec_with(make_spec, **short), *self.BODIES)

        replay(stage, self.arriving(make_spec, "when_unusable", **short))

        assert self.times(stage) == self.TIMES


def test_a_rule_that_was_mended_lets_its_rows_land(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    def ruled(limit: int) -> PipelineSpec:
        return spec_with(make_spec, orders={"rules": [{"name": "low", "check": f"level_int < {limit}"}]})

    stage.ingest(ruled(5), event(1) + event(7) + event(20))

    result = replay(stage, ruled(10), QuarantineFilter(reasons=("rule",)))

    assert (result.landed, result.still_rejected) == (1, 1)
    assert stage.places("events") == Counter([(1, 0), (1, 1)])


def test_columns_that_a_replay_finds_are_added_to_the_table(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    evolve = {"orders": {"evolve": "add_columns"}}
    stage.ingest(spec_with(make_spec, **evolve), event("one", color="red"))

    replay(stage, spec_with(make_spec, "string", **{"orders": {"evolve": "add_columns"}}))

    assert [row["color"] for row in stage.rows("orders")] == ["red"]


def test_events_of_a_held_table_wait(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event("x", name="login"))
    mended = spec_with(make_spec, "string")
    objects = open_objects(stage.environment.lake)
    key = paths.held_table("shop", "orders")
    objects.put(key, HeldTable(table="orders", reason="write_turn", since_batch=0, at="").encode())

    result = replay(stage, mended)

    assert (result.landed, result.missing_causes) == (0, {"table_held": 1})
    assert not stage.places("events"), "an event is in all its tables or in none"
    objects.delete(key)
    assert replay(stage, mended).landed == 1


def test_a_table_held_since_a_replay_was_prepared_holds_it_up_until_it_is_free(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    stage.ingest(spec_with(make_spec), event("one"))
    mended, objects = spec_with(make_spec, "string"), open_objects(stage.environment.lake)
    key = paths.held_table("shop", "orders")

    def hold(point: str) -> None:
        if point == "prepared":
            objects.put(key, HeldTable(table="orders", reason="suspended", since_batch=0, at="").encode())

    with pytest.raises(ConcurrencyError, match="TABLE_HELD"):
        replay(stage, mended, fault=hold)
    objects.delete(key)

    assert replay(stage, mended).resumed_replays == 1
    assert stage.places("orders") == stage.places("events") == Counter([(1, 0)])


def test_a_table_that_spark_writes_by_choice_is_replayed_and_one_that_needs_it_is_told(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    def written_by_spark(level: str) -> PipelineSpec:
        return spec_with(make_spec, level, orders={"writer": "spark"})

    stage.ingest(written_by_spark("int"), event("one"))
    assert replay(stage, written_by_spark("string"), dry_run=True).landed == 1
    assert replay(stage, written_by_spark("string")).landed == 1
    orders = present(stage.lake.open(paths.table("shop", "orders")))
    orders.alter.add_constraint({"early": "_seq < 1000"})
    stage.ingest(written_by_spark("int"), event("two"))

    results = [replay(stage, written_by_spark("string"), dry_run=dry_run) for dry_run in (True, False)]

    assert [(result.landed, result.missing_causes) for result in results] == [(0, {"table_needs_spark": 1})] * 2
    assert stage.places("orders") == stage.places("events") == Counter([(1, 0)])


def test_a_prepared_replay_of_a_later_release_is_refused(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one"))
    open_objects(stage.environment.lake).put(paths.prepared_replay("shop", 1), b'{"format": 2}')

    with pytest.raises(ContractError, match="PREPARED_REPLAY_UNREADABLE"):
        replay(stage, spec_with(make_spec, "string"))


def test_gold_is_told_by_the_dates_that_changed(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event(1) + event("one", time=1_600_000_000))
    key = paths.table("shop", "orders")
    before = present(stage.lake.open(key))

    replay(stage, spec_with(make_spec, "string"))

    after = present(stage.lake.open(key))
    changes = changed_partitions(stage.lake, key, after_version=before.version(), up_to_version=after.version())
    assert changes.partition_values("event_date") == {"2020-09-13"}


def test_counts_and_rows_are_those_that_are_open(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    stage.ingest(spec_with(make_spec), event("one") + event("two") + b"{")
    replay(stage, spec_with(make_spec, "string"), limit=1)
    found = Quarantine(stage.lake, "shop")

    assert [(row["code"], row["event_name"], row["rows"]) for row in found.counts(ALL)] == [
        ("malformed", None, 1),
        ("type_mismatch", "order", 1),
    ]
    assert [(row["code"], row["rows"]) for row in found.counts(ALL, all_rows=True)] == [
        ("type_mismatch", 2),
        ("malformed", 1),
    ]
    assert [row["_position"] for row in found.rows(ALL, limit=5)] == [2, 1]
    assert len(found.rows(ALL, limit=5, all_rows=True)) == 3


def test_a_pipeline_without_tables_has_an_empty_quarantine(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    assert Quarantine(stage.lake, "shop").counts(ALL) == []
    assert replay(stage, spec_with(make_spec)).selected == 0


LEVELS = st.sampled_from([1, "one", [1], None, 2**40, True])
LINES = st.one_of(
    st.builds(event, LEVELS),
    st.builds(lambda level: event(level, name="login"), LEVELS),
    st.builds(lambda level: event(level, time="never"), LEVELS),
    st.sampled_from([b"{broken}", b"7", b'[{"name": "order", "time": 1, "level": "in"}, 8]']),
)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.lists(LINES, max_size=4), min_size=1, max_size=3),
    st.integers(20, 200),
    st.integers(1, 4),
    st.sampled_from([None, *POINTS]),
)
def test_after_a_replay_every_event_is_once_in_its_tables_or_open_once(
    tmp_path_factory: pytest.TempPathFactory,
    objects: list[list[bytes]],
    retain: int,
    slice_rows: int,
    point: str | None,
) -> None:
    """Against the obvious: what landed at first, and what the mended spec lands of the rest."""
    base: dict[str, Any] = {
        "pipeline": "shop",
        "description": "",
        "owner": "",
        "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
        "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}},
        "quarantine": {"retain_raw_bytes": retain},
    }

    def make(**changes: Any) -> PipelineSpec:
        return PipelineSpec.model_validate(base | changes)

    wrong, mended = spec_with(make), spec_with(make, "string")
    bodies = [b"\n".join(lines) for lines in objects]
    stage = ReplayHarness(tmp_path_factory.mktemp("lake"))
    stage.ingest(wrong, *bodies)

    try:
        replay(stage, mended, slice_rows=slice_rows, fault=crash_at(point))
    except Crash:
        replay(stage, mended, slice_rows=slice_rows)

    at_first, now = _landing(wrong, bodies), _landing(mended, bodies)
    landed = {place: at_first.get(place) or now.get(place) or [] for place in at_first.keys() | now.keys()}
    for table in ("events", "orders"):
        assert stage.places(table) == Counter(place for place, names in landed.items() if table in names)
    assert stage.open_places() == Counter(place for place, names in landed.items() if not names)


def _landing(spec: PipelineSpec, bodies: list[bytes]) -> dict[tuple[int, int], list[str]]:
    """By place, the tables an event lands in; none for quarantine."""
    found: dict[tuple[int, int], list[str]] = {}
    payloads = [Payload(seq, f"k{seq}", body) for seq, body in enumerate(bodies, 1)]
    for name, part in Parser(spec).parse(payloads, BatchMetadata(0, ARRIVED_US, "")):
        for row in part.select(["_seq", "_position"]).to_pylist():
            names = found.setdefault((row["_seq"], row["_position"]), [])
            if name != "quarantine":
                names.append(name)
    return found


def received(key: str, size: int, etag: str) -> ReceivedEvent:
    """An announcement of now."""
    file = FileEvent("landing", key, size, etag, None, utc_now(), "ObjectCreated:Put", None)
    return ReceivedEvent(file, "message", utc_now())


def test_a_lost_object_sent_again_with_the_same_content_lands_once_and_only_where_it_had_not(
    stage: ReplayHarness, make_spec: MakeSpec
) -> None:
    spec = spec_with(make_spec)
    body = event(1)
    stage.ingest(spec, body)
    stage.ingest(spec, body, lost=True)
    writer = FileEventLogWriter(Lake(stage.lake.storage), "landing", epoch=1)
    lost = stage.events[1]

    (stage.landing / lost["key"]).write_bytes(body)
    sent_again = [received(file["key"], file["size"], file["etag"]) for file in stage.events]

    assert writer.append(sent_again).is_empty
    assert (stage.places("orders"), stage.open_places()) == (Counter([(1, 0)]), Counter([(2, ENTIRE_OBJECT)]))
    for landed in (1, 0):
        result = replay_quarantine(stage.catalog(spec), "shop", QuarantineFilter(), dry_run=False)
        assert (result.landed, result.selected) == (landed, landed)
        assert (stage.places("orders"), stage.open_places()) == (Counter([(1, 0), (2, 0)]), Counter())


def test_a_lost_object_sent_again_with_other_content_is_another_file(stage: ReplayHarness, make_spec: MakeSpec) -> None:
    spec = spec_with(make_spec)
    stage.ingest(spec, event(1), lost=True)
    (lost,) = stage.events
    writer = FileEventLogWriter(Lake(stage.lake.storage), "landing", epoch=1)
    (stage.landing / lost["key"]).write_bytes(event(2))
    assert writer.append([received(lost["key"], lost["size"], "other")]).events.num_rows == 1
    result = replay_quarantine(stage.catalog(spec), "shop", QuarantineFilter(), dry_run=False)

    assert (result.landed, dict(result.missing_causes)) == (0, {"object_changed": 1})
