"""State machine of a keyed table's owners: crashes in a merge, takeovers, and former owners that resume late."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.keyed.merge import KeyedMerge
from deltaworks.errors import FencedError


class SimulatedCrash(Exception):
    """Simulates the end of the process."""


class OwnersMachine(RuleBasedStateMachine):
    """Current and former owners. A subclass creates `harness` and the first owner, and adds rules that change rows."""

    #: Provides `tables`, `follow`, `latest` and the `expected` rows.
    harness: Any
    owner: KeyedTables
    former: list[KeyedTables]
    #: Whether the table owes nothing to what has landed.
    is_current = False

    @rule()
    def follow(self) -> None:
        self.harness.follow(self.owner)
        self.is_current = True

    @rule(method=st.sampled_from(["merge", "_merge_by_delta_rs"]), after=st.booleans())
    def crash_in_a_merge(self, method: str, after: bool) -> None:
        original = getattr(KeyedMerge, method)

        def dies(*positional: Any, **named: Any) -> Any:
            if after:
                original(*positional, **named)
            raise SimulatedCrash

        with mock.patch.object(KeyedMerge, method, dies), suppress(SimulatedCrash):
            self.harness.follow(self.owner)
        self.take_over()

    @rule()
    def take_over(self) -> None:
        self.former.append(self.owner)
        self.owner = self.harness.tables()
        self.is_current = False

    @precondition(lambda self: self.former)
    @rule(data=st.data())
    def former_owner_resumes(self, data: st.DataObject) -> None:
        with suppress(FencedError):
            self.harness.follow(data.draw(st.sampled_from(self.former)))

    @invariant()
    def what_was_followed_is_exact(self) -> None:
        if self.is_current:
            self.is_exact()

    def is_exact(self) -> None:
        assert self.harness.latest() == self.harness.expected()
