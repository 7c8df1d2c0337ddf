"""Changed view results are published to SNS over the wire, and never end the stream."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.engine.view_announcer import AnnouncerThread, ViewAnnouncer, to_json_value, view_announcements
from deltaworks.errors import ContractError, TransientError
from deltaworks.operations.stream_parts import announce_views
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import catalog_of, write_files
from tests.unit.alerts.aws_harness import Aws
from tests.unit.engine.keyed.latest_harness import LatestHarness, live_declared, priced
from tests.waiting import eventually

PER_SYMBOL = "SELECT symbol, version, event_time FROM prices_now WHERE version > 0 ORDER BY symbol;\n"


class FakeLease:
    """A lease that is lost or not."""

    is_lost = False


class Widgets:
    """A live table, an announced view of it, and the subscribed queue."""

    def __init__(self, root: Path, aws: Aws, *, fifo: bool = False, every_seconds: float = 1) -> None:
        self.aws, self.root = aws, root
        self.queue = aws.queue(fifo=fifo)
        self.topic = aws.topic(fifo=fifo)
        aws.subscribe(self.topic, self.queue)
        mapping = live_declared().model_dump(mode="json", exclude_unset=True)
        announce = {"channel": "widgets", "every_seconds": every_seconds}
        mapping["views"] = [{"name": "prices", "sql": "prices.sql", "reads": ["prices_now"], "announce": announce}]
        self.harness = LatestHarness(root / "lake", PipelineSpec.model_validate(mapping))
        self.sql(PER_SYMBOL)

    def sql(self, text: str) -> None:
        write_files(self.root, {"include/pipelines/market/prices.sql": text})

    @property
    def catalog(self) -> Catalog:
        channels = [{"kind": "sns", "name": "widgets", "topic": self.topic}]
        places = {"lake": self.harness.lake.storage, "messaging": self.aws.messaging}
        return catalog_of(self.root, self.harness.spec, **places, alerts={"channels": channels})

    def announcer(self) -> ViewAnnouncer:
        return ViewAnnouncer(self.catalog, self.harness.spec)

    def announce(self, announcer: ViewAnnouncer | None = None) -> int | None:
        return (announcer or self.announcer()).announce(self.harness.spec.views[0])

    def land(self, *rows: dict[str, Any]) -> None:
        self.harness.append(rows)
        self.harness.follow()

    def received(self) -> list[tuple[int, dict[str, int]]]:
        """Number and version by symbol of every message in the queue."""
        messages = self.aws.received(self.queue)
        assert all((message["pipeline"], message["view"]) == ("market", "prices") for message in messages)
        return [(message["number"], {row["symbol"]: row["version"] for row in message["rows"]}) for message in messages]

    def alerts(self) -> set[str]:
        return set(open_subjects(open_objects(self.harness.lake.storage), "VIEW_NOT_ANNOUNCED"))


@pytest.fixture
def widgets(tmp_path: Path, aws: Aws) -> Widgets:
    return Widgets(tmp_path, aws)


def test_a_result_is_published_when_it_changed(widgets: Widgets) -> None:
    announcer = widgets.announcer()
    assert widgets.announce(announcer) is None, "there is no table yet"
    widgets.land(priced("a", 0, 1))
    assert widgets.announce(announcer) == 1
    assert widgets.announce(announcer) is None
    widgets.land(priced("b", 0, 0))
    assert widgets.announce(announcer) is None, "the view does not show this row"
    widgets.land(priced("b", 1, 2), priced("a", 1, 3))
    assert widgets.announce(announcer) == 2

    assert widgets.received() == [(1, {"a": 1}), (2, {"a": 3, "b": 2})]


def test_another_process_continues_where_the_last_one_stopped(widgets: Widgets) -> None:
    widgets.land(priced("a", 0, 1))
    widgets.announce()
    assert widgets.announce() is None
    widgets.land(priced("a", 1, 2))
    widgets.announce()

    assert widgets.received() == [(1, {"a": 1}), (2, {"a": 2})]


def test_a_crash_before_the_record_is_written_publishes_the_same_number_again(tmp_path: Path, aws: Aws) -> None:
    for fifo, copies in ((False, 2), (True, 1)):
        widgets = Widgets(tmp_path / f"fifo{fifo}", aws, fifo=fifo)
        widgets.land(priced("a", 0, 1))
        widgets.announce()
        open_objects(widgets.harness.lake.storage).delete(paths.announced_view("market", "prices"))
        widgets.announce()

        assert widgets.received() == [(1, {"a": 1})] * copies


def test_rows_in_another_order_are_the_same_result(widgets: Widgets) -> None:
    widgets.land(priced("a", 0, 1), priced("b", 0, 2))
    widgets.announce()
    widgets.sql(PER_SYMBOL.replace("ORDER BY symbol", "ORDER BY symbol DESC"))

    assert widgets.announce() is None


def test_unreadable_and_unsendable_views_raise_the_cause(widgets: Widgets) -> None:
    widgets.land(priced("a", 0, 1))
    widgets.sql("SELECT nothing FROM prices_now")
    with pytest.raises(ContractError, match=r"VIEW_UNREADABLE.*nothing"):
        widgets.announce()
    widgets.sql("SELECT symbol, version, repeat('x', 300000) AS text FROM prices_now")
    with pytest.raises(ContractError, match="ANNOUNCEMENT_TOO_LARGE"):
        widgets.announce()
    widgets.sql(PER_SYMBOL)
    widgets.topic += "-gone"
    with pytest.raises(TransientError, match="ANNOUNCEMENT_REFUSED"):
        widgets.announce()
    widgets.topic = widgets.topic.removesuffix("-gone")

    assert widgets.announce() == 1


def test_the_stream_publishes_while_it_runs_and_continues_after_a_failure(widgets: Widgets) -> None:
    widgets.land(priced("a", 0, 1))
    lease: Any = FakeLease()
    heard: list[tuple[int, dict[str, int]]] = []

    def is_heard(count: int) -> bool:
        heard.extend(widgets.received())
        return len(heard) >= count

    with view_announcements(widgets.catalog, widgets.harness.spec, lease):
        eventually(lambda: is_heard(1), "the first answer")
        widgets.sql("SELECT nothing FROM prices_now")
        eventually(lambda: widgets.alerts() == {"market.prices"}, "the alert")
        widgets.land(priced("a", 1, 2))
        widgets.sql(PER_SYMBOL)
        eventually(lambda: is_heard(2), "the second answer")
        eventually(lambda: not widgets.alerts(), "the alert is resolved")

    widgets.land(priced("a", 2, 3))
    assert heard == [(1, {"a": 1}), (2, {"a": 2})]


def test_nothing_is_published_once_the_lease_is_lost(widgets: Widgets) -> None:
    widgets.land(priced("a", 0, 1))
    thread = AnnouncerThread(widgets.announcer(), widgets.harness.spec.views, has_lease=lambda: False)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    assert widgets.received() == []


def test_a_stream_without_such_views_starts_no_thread(widgets: Widgets) -> None:
    def stream(spec: PipelineSpec) -> Any:
        return SimpleNamespace(catalog=widgets.catalog, spec=spec, lease=FakeLease())

    with announce_views(stream(live_declared())):
        assert "announced views" not in {thread.name for thread in threading.enumerate()}
    with announce_views(stream(widgets.harness.spec)):
        assert "announced views" in {thread.name for thread in threading.enumerate()}
    assert "announced views" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (decimal.Decimal("1.10"), "1.10"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "2026-01-01T00:00:00+00:00"),
        (dt.date(2026, 1, 1), "2026-01-01"),
        (math.nan, None),
        (math.inf, None),
        ({"a": [decimal.Decimal(1), (True, None)]}, {"a": ["1", [True, None]]}),
        (1.5, 1.5),
    ],
)
def test_values_are_converted_to_json(value: Any, expected: Any) -> None:
    assert to_json_value(value) == expected
    json.dumps(to_json_value(value), allow_nan=False)
