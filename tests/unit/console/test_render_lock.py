"""The render lock: one page at a time, released while a thread waits."""

from __future__ import annotations

import sys
import threading

import pytest

from deltaworks.console import table_reads
from deltaworks.console.table_reads import RenderLock, release_while_waiting
from tests.waiting import eventually


def test_two_threads_never_hold_the_lock() -> None:
    turn, inside, begun = RenderLock(), threading.Event(), threading.Event()

    def make() -> None:
        begun.set()
        with turn.hold():
            inside.set()

    thread = threading.Thread(target=make)
    with turn.hold():
        thread.start()
        begun.wait(timeout=30)
        # Were it let in, it would be by now.
        let_in = inside.wait(timeout=0.2)
    thread.join(timeout=30)

    assert not let_in
    assert inside.is_set()


def test_a_waiting_thread_releases_the_lock() -> None:
    turn, answered, made = RenderLock(), threading.Event(), []

    def slow() -> None:
        with turn.hold():
            with release_while_waiting():
                answered.wait(timeout=30)
            made.append("slow")

    thread = threading.Thread(target=slow)
    thread.start()
    with turn.hold():
        made.append("quick")
    answered.set()
    thread.join()

    assert made == ["quick", "slow"]


def test_the_switch_interval_is_short_only_while_a_page_is_rendered() -> None:
    turn, usual = RenderLock(), table_reads._USUAL_SWITCH_SECONDS
    with turn.hold():
        within = sys.getswitchinterval()
        with release_while_waiting():
            outside = sys.getswitchinterval()

    assert within < usual
    assert (outside, sys.getswitchinterval()) == (usual, usual)


def test_two_locks_leave_the_usual_switch_interval() -> None:
    first, second = RenderLock(), RenderLock()
    first._acquire()
    second._acquire()
    first._release()
    second._release()

    assert sys.getswitchinterval() == table_reads._USUAL_SWITCH_SECONDS


def test_a_failed_page_releases_the_lock() -> None:
    turn = RenderLock()
    with pytest.raises(ValueError, match="torn"), turn.hold():
        raise ValueError("torn")
    done = threading.Event()

    def next_page() -> None:
        with turn.hold():
            done.set()

    threading.Thread(target=next_page, daemon=True).start()

    eventually(done.is_set, "the next page has its turn")


def test_waiting_without_the_lock_releases_nothing() -> None:
    with release_while_waiting():
        assert True
