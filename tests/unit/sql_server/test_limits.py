"""Slots of running queries, and the bounds of handles."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.sql_server import SqlLimitsSpec
from deltaworks.sql_server import statements
from deltaworks.sql_server.admission import Admission
from deltaworks.sql_server.references import ParsedStatement
from deltaworks.sql_server.statements import Statement, StatementStore
from tests.waiting import eventually


def limits(**changed: float) -> SqlLimitsSpec:
    return SqlLimitsSpec.model_validate({"queries": 2, "queries_per_user": 1, "wait_seconds": 0, **changed})


def statement(text: str = "SELECT 1") -> Statement:
    return Statement(parsed=ParsedStatement(text, frozenset(), False, 0), keys={}, schema=pa.schema([]))


def test_a_user_has_as_many_slots_as_declared_and_so_have_all() -> None:
    admission = Admission(limits())
    admission.enter("sam")
    with pytest.raises(TransientError, match=r"SQL_SERVER_BUSY.*1 of 1 queries of sam"):
        admission.enter("sam")
    admission.enter("ana")
    with pytest.raises(TransientError, match="2 of 2 of all users"):
        admission.enter("eve")
    admission.leave("sam")
    admission.enter("eve")
    assert admission.running == 2


def test_waiting_queries_get_slots_in_order_and_pass_users_without_any() -> None:
    admission = Admission(limits(queries=3, wait_seconds=60))
    admission.enter("sam")
    entered = list[str]()

    def wait(user: str) -> None:
        admission.enter(user)
        entered.append(user)

    threads = [threading.Thread(target=wait, args=(user,)) for user in ("sam", "ana")]
    for thread in threads:
        thread.start()
    eventually(lambda: entered == ["ana"], "another user passes")
    admission.leave("sam")
    for thread in threads:
        thread.join(60)
    assert entered == ["ana", "sam"]


def test_a_user_may_not_let_endless_queries_wait() -> None:
    admission = Admission(limits(waiting_per_user=1, wait_seconds=60))
    admission.enter("sam")
    disconnected = threading.Event()

    def wait() -> None:
        with pytest.raises(TransientError):
            admission.enter("sam", is_cancelled=disconnected.is_set)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(admission._queue) == 2, "two wait")
    with pytest.raises(TransientError, match="1 of your queries wait already"):
        admission.enter("sam")
    disconnected.set()
    for thread in threads:
        thread.join(60)
    assert not admission._queue


def test_handles_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "_MAX_HANDLES", 10)
    monkeypatch.setattr(statements, "_MAX_BYTES", 100_000)
    store = StatementStore()
    handles = [store.add("sam", statement()) for _ in range(20)]
    other = store.add("ana", statement())
    assert store.get("sam", handles[-1])
    assert store.get("ana", other)
    for handle in (*handles[:10], other, b""):
        with pytest.raises(ConfigError, match="SQL_HANDLE_UNKNOWN"):
            store.get("sam", handle)
    large = [store.add("sam", statement("x" * 20_000)) for _ in range(5)]
    assert store._owned["sam"].bytes <= 100_000
    for handle in (*handles, *large):
        store.remove("sam", handle)
    assert store._owned["sam"].bytes == 0


def test_handles_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "HANDLE_SECONDS", 0.0)
    store = StatementStore()
    handle = store.add("sam", statement())
    with pytest.raises(ConfigError, match="SQL_HANDLE_UNKNOWN"):
        store.get("sam", handle)
