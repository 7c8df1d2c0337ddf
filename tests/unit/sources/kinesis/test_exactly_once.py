"""Any interleaving of puts, resharding, reads, retries, crashes, second drivers: every record once, keys in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltaworks.errors import TransientError
from deltaworks.sources.kinesis.shards import row_seq
from tests.examples import examples
from tests.unit.sources.kinesis.engine_model import Engine, Killed, Row, UnprotectedEngine, engine_on, put, read
from tests.unit.sources.kinesis.stream_model import MemoryObjects, ModelStream, Put, options

MODES = ["polling", "fan_out"]
KEYS = [f"player {number}" for number in range(6)]


class Reading(RuleBasedStateMachine):
    """A stream that is written and resharded while a query reads it and is disturbed."""

    engine_type: type[Engine] = Engine

    @initialize(
        shards=st.integers(1, 3),
        rows=st.integers(1, 6),
        size=st.sampled_from([20, 1 << 20]),
        mode=st.sampled_from(MODES),
    )
    def begin(self, shards: int, rows: int, size: int, mode: str) -> None:
        self.stream = ModelStream(shards)
        self.limits = {"maxRecords": str(rows), "maxBytes": str(size), "consumerName": "games"}
        chosen = options(consumerMode=mode, **self.limits)
        self.engine = self.engine_type(self.stream, MemoryObjects(), chosen)
        self.puts: list[Put] = []
        self.actions: list[list[Row]] = []
        self.until: int | None = None

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
    def put(self, keys: list[str]) -> None:
        self.puts += [
            self.stream.put(key, f"{key} {len(self.puts) + index}".encode()) for index, key in enumerate(keys)
        ]

    @rule(index=st.integers(0, 5))
    def split(self, index: int) -> None:
        if len(self.stream.open()) < 8:
            self.stream.split(index)

    @rule(index=st.integers(0, 5))
    def merge(self, index: int) -> None:
        self.stream.merge(index)

    @rule(records=st.integers(1, 5), empty=st.integers(0, 3))
    def answer_in_small_pages(self, records: int, empty: int) -> None:
        self.stream.page_records, self.stream.empty_pages = records, empty

    @rule()
    def expire_iterators(self) -> None:
        self.stream.expire_iterators()

    @rule(minutes=st.integers(1, 50))
    def time_passes(self, minutes: int) -> None:
        # Less than the retention in a whole run: nothing is lost by age here.
        self.stream.tick(timedelta(minutes=minutes / 10))

    @precondition(lambda self: self.engine.open_batch is None)
    @rule()
    def trigger(self) -> None:
        self.engine.plan()
        self.actions = []

    @precondition(lambda self: self.engine.open_batch is not None)
    @rule(kill=st.sampled_from([None, None, "before", "after"]), refusals=st.integers(0, 2))
    def run_an_action(self, kill: str | None, refusals: int) -> None:
        """All tasks; some are killed or throttled and tried again, as Spark does."""
        assert self.engine.open_batch is not None
        self.engine.state.kill = kill
        self.stream.refuse_next_reads = refusals
        rows: list[Row] = []
        for shard_range in self.engine.planner.shard_ranges(self.engine.open_batch):
            for _ in range(6):
                try:
                    rows += self.engine.read(shard_range)
                    break
                except (Killed, TransientError):
                    continue
            else:
                raise AssertionError("a task never succeeded")
        self.engine.state.kill = None
        self.stream.refuse_next_reads = 0
        self.actions.append(rows)

    @precondition(lambda self: self.engine.open_batch is not None)
    @rule(keep=st.integers(0, 3))
    def run_part_of_an_action(self, keep: int) -> None:
        """`take(n)` reads some shards only; such rows count only if nothing else is done with the batch."""
        assert self.engine.open_batch is not None
        self.engine.action(self.engine.planner.shard_ranges(self.engine.open_batch)[:keep])

    @precondition(lambda self: self.engine.open_batch is not None and self.actions)
    @rule()
    def complete(self) -> None:
        assert all(rows == self.actions[0] for rows in self.actions), "two actions got different rows"
        self.engine.complete(self.actions[0])
        self.actions = []

    @rule(events=st.integers(1, 4))
    def end_subscriptions_early(self, events: int) -> None:
        self.stream.events_per_subscription = events

    @rule(available_now=st.booleans(), mode=st.sampled_from(MODES))
    def crash_and_restart(self, available_now: bool, mode: str) -> None:
        """The batch that was open is read again from Spark's log; what its actions did is undone by the sink."""
        self.engine.options = options(consumerMode=mode, **self.limits)
        self.engine.restart(available_now=available_now)
        self.until = len(self.puts) if available_now else None

    @precondition(lambda self: self.engine.log)
    @rule(reads=st.booleans(), plans=st.booleans())
    def another_driver_is_alive(self, reads: bool, plans: bool) -> None:
        """It has the same checkpoint and state; what it reads or plans does not count."""
        other, newest = self.engine.new_planner(), self.engine.start()
        shard_ranges = other.shard_ranges(newest)
        if reads:
            for shard_range in shard_ranges:
                self.engine.read(shard_range)
        elif plans and self.engine.open_batch is None:
            planned = other.next_batch(newest)
            if planned is not None:
                for shard_range in other.shard_ranges(planned)[:1]:
                    self.engine.read(shard_range)

    @invariant()
    def nothing_is_doubled_and_ordinals_have_no_gaps(self) -> None:
        if not hasattr(self, "engine"):
            return
        counts = Counter(row.data for row in self.engine.rows())
        assert not [data for data, count in counts.items() if count > 1]
        ordinals: dict[str, list[int]] = defaultdict(list)
        for row in self.engine.rows():
            ordinals[row.shard_id].append(row.ordinal)
        assert all(numbers == list(range(len(numbers))) for numbers in ordinals.values())

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.actions:
            self.complete()
        self.engine.restart()
        self.engine.drain()
        rows = self.engine.rows()
        assert Counter(row.data for row in rows) == Counter(put.data for put in self.puts)
        for key in KEYS:
            by_seq = sorted(
                (row for row in rows if row.partition_key == key),
                key=lambda row: row_seq(row.shard_id, row.ordinal),
            )
            expected = [put.data for put in self.puts if put.key == key]
            assert [row.data for row in by_seq] == expected, "order by _seq"
            assert [row.data for row in rows if row.partition_key == key] == expected, "order of arrival"


Reading.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestReading = Reading.TestCase


def two_actions(engine: Engine) -> tuple[list[Row], list[Row]]:
    """100 records, an action, 50 more, another action on the same batch."""
    put(engine.stream, *map(str, range(100)))
    engine.plan()
    first = engine.action()
    put(engine.stream, *map(str, range(100, 150)))
    return first, engine.action()


def test_the_control_without_records_gives_two_actions_different_rows() -> None:
    first, second = two_actions(UnprotectedEngine(ModelStream(), MemoryObjects(), options()))

    assert (len(first), len(second)) == (100, 150)


def test_two_actions_get_the_same_rows_although_more_arrive_between_them() -> None:
    engine = engine_on(ModelStream())
    first, second = two_actions(engine)

    assert second == first
    engine.complete(first)
    assert len(first) == 100
    assert read(engine) == [str(number) for number in range(100, 150)]


@pytest.mark.parametrize("shards", [1, 2])
def test_available_now_reads_available_records_and_leaves_later_ones(shards: int) -> None:
    stream = ModelStream(shards)
    engine = Engine(stream, MemoryObjects(), options(maxRecords="4"))
    before = [stream.put(key, f"before {key}".encode()) for key in KEYS]
    engine.restart(available_now=True)
    after = [stream.put(key, f"after {key}".encode()) for key in KEYS]

    assert Counter(row.data for row in engine.drain()) == Counter(put.data for put in before)
    engine.restart(available_now=True)
    assert Counter(row.data for row in engine.drain()) == Counter(put.data for put in after)
    engine.restart(available_now=True)
    assert engine.drain() == []
