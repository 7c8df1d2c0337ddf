"""A stream that maintains gold and a latest-rows table is killed while the DAG builds the same gold. No row may be
doubled, no older result may replace a newer one, and the last announced result must be current.

With build numbers disabled, the DAG's older result replaces the stream's.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.gold.pinned_inputs import BUILT_FROM
from deltaworks.tables.log import commit_history
from deltaworks.testing import declare_table, table_rows, write_files
from tests.faults.harness.driver import END_SECONDS, Driver
from tests.faults.harness.fault_project import FIRST_TIME, PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.unit.alerts.aws_harness import Aws, running_aws
from tests.waiting import eventually

GOLD, LATEST = "minutes", "ticks_now"
SECONDS = 3 * END_SECONDS
DECLARED: dict[str, Any] = {
    "tables": [declare_table("events", "n long required", "symbol string")],
    "gold": {
        "dedupe": {"by": "event_id", "within_days": 1, "within_hours": 3},
        "tables": [
            {
                "name": GOLD,
                "sql": "gold/minutes.sql",
                "reads": ["events"],
                "partition_by": "event_date",
                "grain": {"column": "minute", "part": "hour"},
                "lag": "15s",
            }
        ],
    },
    "live": [
        {
            "name": LATEST,
            "reads": "events",
            "kind": "latest",
            "key": ["symbol"],
            "keep": ["n"],
            "expire_after_minutes": 6_000,
            "trigger_seconds": 1,
        }
    ],
    "views": [
        {
            "name": "newest",
            "reads": [LATEST],
            "sql": "views/newest.sql",
            "announce": {"channel": "widgets", "every_seconds": 1},
        }
    ],
}
MINUTES_SQL = """\
SELECT event_date, date_trunc('MINUTE', event_time) AS minute, count(*) AS events, sum(n) AS total
FROM events GROUP BY event_date, date_trunc('MINUTE', event_time)
"""
NEWEST_SQL = "SELECT symbol, n FROM ticks_now ORDER BY symbol\n"


class Traffic:
    """Events at random times of an hour, each in bronze once or more, and the expected results."""

    def __init__(self, stage: FaultProject, aws: Aws | None = None) -> None:
        self.stage = stage
        self._random = random.Random(stage.seed)
        self.events: list[dict[str, Any]] = []
        declared = dict(DECLARED) if aws is not None else {**DECLARED, "views": []}
        folder = stage.root / "include" / "pipelines" / PIPELINE
        write_files(folder, {"gold/minutes.sql": MINUTES_SQL, "views/newest.sql": NEWEST_SQL})
        stage.declare(**declared)
        if aws is not None:
            self._announces(aws)

    def _announces(self, aws: Aws) -> None:
        self.queue, topic = aws.queue(), aws.topic()
        aws.subscribe(topic, self.queue)
        file = self.stage.root / "include" / "environments" / "local.yaml"
        environment = yaml.safe_load(file.read_text())
        environment["messaging"] = aws.messaging.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        environment["alerts"] = {"channels": [{"kind": "sns", "name": "widgets", "topic": topic}]}
        file.write_text(yaml.safe_dump(environment, sort_keys=False))

    def land(self, count: int = 60) -> None:
        """Lands two objects; the second repeats some events of the first, as producers do."""
        made = [
            self.stage.event(
                "tick", symbol=f"s{self._random.randrange(20)}", at=FIRST_TIME + self._random.randrange(3_000)
            )
            for _ in range(count)
        ]
        self.events += made
        half = count // 2
        self.stage.announce(made[:half], copies=2)
        self.stage.announce(made[half:] + [dict(event) for event in made[:3]])

    def minutes(self) -> Counter[tuple[int, int, int]]:
        """Returns gold's rows: minute, events, sum. A doubled row counts twice."""
        rows = self.stage.lake.rows(paths.table(PIPELINE, GOLD), columns=["minute", "events", "total"])
        listed = [] if rows is None else rows.to_pylist()
        return Counter((int(row["minute"].timestamp()) // 60, row["events"], row["total"]) for row in listed)

    def true_minutes(self) -> Counter[tuple[int, int, int]]:
        """Returns the landed events by minute."""
        by_minute: dict[int, list[int]] = {}
        for event in self.events:
            by_minute.setdefault(event["at"] // 60, []).append(event["n"])
        return Counter((minute, len(numbers), sum(numbers)) for minute, numbers in by_minute.items())

    def newest(self) -> Counter[tuple[str, int]]:
        """Returns the rows of the latest-rows table."""
        return Counter(
            (row["symbol"], row["n"]) for row in table_rows(self.stage.lake, PIPELINE, LATEST, "symbol", "n")
        )

    def true_newest(self) -> Counter[tuple[str, int]]:
        """Returns from bronze the row with the greatest time of each symbol; among equal times the last arrived."""
        columns = ["symbol", "n", "event_time", "_seq", "_position"]
        rows = self.stage.lake.rows(paths.table(PIPELINE, "events"), columns=columns)
        newest: dict[str, Any] = {}
        for row in [] if rows is None else rows.to_pylist():
            order = (row["event_time"], row["_seq"], row["_position"])
            if row["symbol"] not in newest or order > newest[row["symbol"]][0]:
                newest[row["symbol"]] = (order, row["n"])
        return Counter((symbol, n) for symbol, (_, n) in newest.items())

    @property
    def is_right(self) -> bool:
        """Whether both tables have the expected rows."""
        return self.minutes() == self.true_minutes() and self.newest() == self.true_newest()

    def built_from(self) -> list[int]:
        """Returns the input version of every landed build, oldest first."""
        table = self.stage.lake.open(paths.table(PIPELINE, GOLD))
        if table is None:
            return []
        commits = commit_history(self.stage.lake, paths.table(PIPELINE, GOLD), newest=table.version())
        return [commit.metadata[BUILT_FROM]["events"] for commit in commits if BUILT_FROM in commit.metadata][::-1]


@contextmanager
def streaming(stage: FaultProject, **options: Any) -> Iterator[Driver]:
    """Runs a stream inside the block and ends it through its stop flag."""
    flag = StopFlag(stage.objects, paths.stop_request(paths.pipeline_control(PIPELINE)))
    with Driver(stage, available_now=False, **options) as driver:
        yield driver
        flag.set(by="tests", reason="over")
        driver.run_to_end()
        flag.clear()


@pytest.fixture(scope="module")
def aws_server() -> Iterator[str]:
    with running_aws() as address:
        yield address


def test_killed_around_every_build_and_merge_it_ends_with_the_right_answers(
    make_stage: Callable[..., FaultProject],
    print_result: Callable[..., None],
    aws_server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws = Aws.at(aws_server, monkeypatch)
    stage = make_stage(tables=1)
    traffic, wrong = Traffic(stage, aws), []
    for point in (f"gold_writing:{GOLD}", f"merging:{LATEST}", f"gold_written:{GOLD}", f"merged:{LATEST}"):
        traffic.land()
        with Driver(stage, available_now=False, faults=[Fault(point=point, after="begun")]) as driver:
            assert driver.wait(SECONDS) != 0, driver.tail()
            driver.first_fault_at()
        wrong.append(not traffic.is_right)
    traffic.land()
    with streaming(stage):
        eventually(lambda: traffic.is_right, "gold and newest rows are right", seconds=SECONDS)
        heard: list[dict[str, Any]] = []

        def told() -> bool:
            heard.extend(aws.received(traffic.queue))
            rows = heard[-1]["rows"] if heard else []
            return Counter((row["symbol"], row["n"]) for row in rows) == traffic.true_newest()

        eventually(told, "the last answer is announced")
    numbers = [message["number"] for message in heard]
    print_result("stream killed around builds of gold and merges", "protected", f"builds {len(traffic.built_from())}")
    assert traffic.is_right
    assert sum(traffic.minutes().values()) == len(traffic.true_minutes())
    assert any(wrong), "nothing was left to the successors"
    assert numbers == sorted(numbers)
    assert traffic.built_from() == sorted(traffic.built_from())


@pytest.mark.parametrize("off", ["", "gold_number"])
def test_the_dag_that_builds_beside_the_stream_puts_no_older_answer_over_a_newer_one(
    make_stage: Callable[..., FaultProject], print_result: Callable[..., None], off: str
) -> None:
    stage = make_stage(tables=1)
    traffic = Traffic(stage)
    traffic.land()
    slow = Fault(point=f"gold_writing:{GOLD}", action="stop")
    with streaming(stage):
        eventually(lambda: traffic.is_right, "the first answer", seconds=SECONDS)
        dag_of = {"DELTAWORKS_TEST_GOLD": "full"}
        with Driver(stage, faults=[slow], off=[off] * bool(off), environment=dag_of) as dag:
            dag.await_point("injected stop", SECONDS)
            before = traffic.built_from()[-1]
            traffic.land()
            eventually(lambda: traffic.built_from()[-1] > before, "the stream has built since", seconds=SECONDS)
            eventually(lambda: traffic.is_right, "the newer answer", seconds=SECONDS)
            dag.signal(signal.SIGCONT)
            code = dag.wait(SECONDS)
            condition, _ = dag.final_error()
        eventually(lambda: traffic.is_right, "the answer is right in the end", seconds=SECONDS)
    builds = traffic.built_from()
    print_result("the DAG beside the stream's gold", off or "protected", f"builds {builds}", f"DAG {code} {condition}")
    if off:
        assert builds != sorted(builds), "no older answer landed, so there was nothing to protect from"
    else:
        assert (condition, builds) == ("GOLD_OVERTAKEN", sorted(builds))
        assert sum(traffic.minutes().values()) == len(traffic.true_minutes())
