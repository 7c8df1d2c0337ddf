"""After any sequence of history changes, crashes and takeovers, the keyed table equals a slow oracle."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.examples import examples
from tests.unit.engine.keyed.keyed_harness import START, KeyedHarness, declared, tick
from tests.unit.engine.keyed.owners_machine import OwnersMachine

DAYS = [START.date(), START.date() + dt.timedelta(days=1)]
ROWS = st.lists(
    st.builds(
        tick,
        st.sampled_from(["a", "b", "ü'\\", None]),
        st.sampled_from([None, -1, 0, 1, 2]),
        day=st.sampled_from([*DAYS, None]),
        event_date=st.sampled_from(DAYS),
        op=st.sampled_from(["u", "d", None]),
    ),
    max_size=6,
)


class KeyedMachine(OwnersMachine):
    """One history with its keyed table, and current and former owners."""

    @initialize(deletes=st.booleans(), mutable=st.booleans(), parted=st.booleans())
    def begin(self, deletes: bool, mutable: bool, parted: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        keyed: dict[str, Any] = {"deleted_when": {"op": "d"}} if deletes else {}
        spec = declared(mutable=mutable, **keyed)
        if parted:
            mapping = spec.model_dump(mode="json", exclude_unset=True)
            mapping["tables"][0]["keyed"]["partition_by"] = ["day"]
            spec = type(spec).model_validate(mapping)
        self.harness = KeyedHarness(Path(self.folder.name), spec)
        self.mutable = mutable
        self.landed: dict[int, list[dict[str, Any]]] = {}
        self.former = []
        self.owner = self.harness.tables()
        self.is_current = True
        self.land([])

    @rule(rows=ROWS)
    def land(self, rows: list[dict[str, Any]]) -> None:
        self.landed[self.harness.append(rows)] = rows
        self.is_current = False

    @rule(data=st.data())
    def land_again(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.landed)))
        self.harness.append(self.landed[number], batch=number)

    @rule(where=st.sampled_from(["version = 2", "symbol = 'a'", "op = 'd'", "version IS NULL"]))
    def delete(self, where: str) -> None:
        self.harness.history().delete(where)
        self.is_current = False

    @precondition(lambda self: self.mutable)
    @rule(
        values=st.sampled_from([{"symbol": "'b'"}, {"_deleted": "true"}, {"_deleted": "false"}, {"symbol": "'n'"}]),
        where=st.sampled_from(["version = 1", "symbol = 'a'", "symbol = 'b' AND op = 'u'"]),
    )
    def mutate(self, values: dict[str, str], where: str) -> None:
        self.harness.history().update(updates={**values, "_mutation": "1"}, predicate=where)
        self.is_current = False

    @rule()
    def optimize(self) -> None:
        self.harness.history().optimize.compact()

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        history = self.harness.history()
        if history.version():
            history.restore(data.draw(st.integers(min_value=0, max_value=history.version() - 1)))
            self.is_current = False

    @rule()
    def somebody_else_writes_the_keyed_table(self) -> None:
        # It is noticed by the next owner, and no sooner.
        self.follow()
        self.harness.latest_table().delete("symbol = 'a'")
        self.take_over()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.follow()
            self.is_exact()
            self.folder.cleanup()


KeyedMachine.TestCase.settings = settings(
    max_examples=examples(8), stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestKeyedMachine = KeyedMachine.TestCase
