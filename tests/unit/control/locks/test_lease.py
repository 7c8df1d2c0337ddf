"""Leases: one owner at a time, no clock comparison, increasing epochs."""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deltaworks.control.locks import lease as lease_module
from deltaworks.control.locks.lease import Lease, LeaseRecord, LeaseWatch, UnchangedTimer, watch_lease
from deltaworks.control.objects import LocalObjects, ObjectStore, StoredObject
from deltaworks.errors import ConcurrencyError, TransientError
from deltaworks.testing import present
from tests.unit.control.conftest import FaultyObjects
from tests.waiting import PATIENCE_SECONDS, eventually

TTL_SECONDS = 0.45
#: What no test lasts: no lease of this time to live runs out by itself.
LONG_TTL_SECONDS = 3_600.0
KEY = "control/lease.json"


def make(objects: ObjectStore, ttl_seconds: float = TTL_SECONDS) -> Lease:
    return Lease(objects, KEY, ttl_seconds=ttl_seconds, name="games")


def acquire(lease: Lease, wait_seconds: float = PATIENCE_SECONDS) -> int:
    return lease.acquire(wait_seconds=wait_seconds, poll_seconds=0.02)


def pause(lease: Lease) -> None:
    """Stops renewal, like a suspended or dead process."""
    lease._stop.set()
    if lease._thread is not None:
        lease._thread.join()


def resume(lease: Lease) -> None:
    lease._stop.clear()
    lease._thread = threading.Thread(target=lease._renew_until_stopped, daemon=True)
    lease._thread.start()


class RenewingObjects:
    """A store in which the owner renews its lease before each read of a challenger."""

    def __init__(self, inner: ObjectStore, owner: Lease) -> None:
        self._inner = inner
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str) -> StoredObject | None:
        assert self._owner._renew()
        return self._inner.get(key)


def challenge_error(objects: ObjectStore, owner: Lease) -> ConcurrencyError:
    """Returns the error of a challenger that sees the owner renew for several times to live."""
    pause(owner)
    with pytest.raises(ConcurrencyError) as caught:
        acquire(make(RenewingObjects(objects, owner)), wait_seconds=TTL_SECONDS * 3)  # type: ignore[arg-type]
    resume(owner)
    return caught.value


def test_the_first_owner_has_epoch_one_on_every_store(objects: ObjectStore) -> None:
    lease = make(objects)

    assert acquire(lease) == 1
    lease.release()


def test_a_renewed_lease_is_not_taken_over(local_objects: LocalObjects) -> None:
    owner = make(local_objects)
    acquire(owner)
    eventually(lambda: current(local_objects).renewal >= 2, "the owner renews by itself")

    refusal = challenge_error(local_objects, owner)

    assert refusal.condition == "LEASE_HELD"
    assert "deltaworks stop games" in refusal.hint
    assert not owner.is_lost
    owner.release()


def test_a_released_lease_is_acquired_immediately(objects: ObjectStore) -> None:
    first, second = make(objects, LONG_TTL_SECONDS), make(objects, LONG_TTL_SECONDS)
    acquire(first)
    first.release()

    assert acquire(second, wait_seconds=0) == 2, "at the first look"
    second.release()


def test_a_silent_owner_is_replaced_only_after_its_time_to_live(local_objects: LocalObjects) -> None:
    owner, successor = make(local_objects), make(local_objects)
    acquire(owner)
    pause(owner)

    started = time.monotonic()
    assert acquire(successor) == 2
    assert time.monotonic() - started >= TTL_SECONDS
    successor.release()


@pytest.mark.parametrize("written_at", ["1999-01-01T00:00:00.000+00:00", "2099-01-01T00:00:00.000+00:00"])
def test_an_owner_whose_clock_is_far_off_is_treated_like_any_other(
    local_objects: LocalObjects, monkeypatch: pytest.MonkeyPatch, written_at: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(lease_module, "iso_now", lambda: written_at)
        owner = make(local_objects)
        acquire(owner)
        assert challenge_error(local_objects, owner).condition == "LEASE_HELD"
        pause(owner)

    successor = make(local_objects)
    started = time.monotonic()
    assert acquire(successor) == 2
    assert time.monotonic() - started >= TTL_SECONDS
    successor.release()


def test_a_paused_owner_detects_its_replacement(local_objects: LocalObjects) -> None:
    owner, successor = make(local_objects), make(local_objects)
    acquire(owner)
    pause(owner)
    acquire(successor)

    told = threading.Event()
    resume(owner)
    watch_lease(owner, told.set, poll_seconds=0.01)

    assert told.wait(PATIENCE_SECONDS)
    assert owner.is_lost
    owner.release()
    assert not successor.is_lost
    assert current(local_objects).owner == successor.owner
    successor.release()


def test_a_paused_owner_without_successor_continues(local_objects: LocalObjects) -> None:
    owner = make(local_objects)
    acquire(owner)
    pause(owner)
    renewed = current(local_objects).renewal
    time.sleep(TTL_SECONDS * 2)

    resume(owner)

    eventually(lambda: current(local_objects).renewal >= renewed + 2, "the owner renews again")
    assert not owner.is_lost
    owner.release()


def test_a_renewal_with_a_lost_reply_is_recognised(faulty_objects: FaultyObjects) -> None:
    owner = make(faulty_objects, LONG_TTL_SECONDS)
    acquire(owner)
    pause(owner)
    before = current(faulty_objects)

    faulty_objects.lose_reply = lambda call: call == "put_if_match"
    assert owner._renew(), "time decides, and little has passed"
    faulty_objects.lose_reply = lambda call: False
    assert owner._renew(), "what is there is its own"
    assert owner._renew()

    found = current(faulty_objects)
    assert (found.owner, found.renewal) == (owner.owner, before.renewal + 2)
    assert not owner.is_lost
    owner.release()
    assert current(faulty_objects).released


def test_storage_failures_shorter_than_the_time_to_live_are_tolerated(faulty_objects: FaultyObjects) -> None:
    owner = make(faulty_objects, LONG_TTL_SECONDS)
    acquire(owner)
    pause(owner)
    before = current(faulty_objects)

    faulty_objects.fail_before = lambda call: True
    assert all(owner._renew() for _ in range(20))
    faulty_objects.fail_before = lambda call: False
    assert owner._renew()

    assert current(faulty_objects).renewal == before.renewal + 1
    owner.release()


def test_storage_failures_for_a_time_to_live_lose_the_lease(faulty_objects: FaultyObjects) -> None:
    owner = make(faulty_objects)
    acquire(owner)

    faulty_objects.fail_before = lambda call: True

    eventually(lambda: owner.is_lost, "the owner gives up")
    owner.release()

    assert owner.is_lost


def test_releasing_never_fails_even_when_storage_does(faulty_objects: FaultyObjects) -> None:
    owner = make(faulty_objects)
    acquire(owner)
    faulty_objects.fail_before = lambda call: True

    owner.release()

    faulty_objects.fail_before = lambda call: False
    # It could not say so, and renews no more: the next one has it after its time to live.
    successor = make(faulty_objects)
    assert acquire(successor) == owner.epoch + 1
    successor.release()


def test_of_many_claimants_one_wins_and_epochs_only_grow(local_objects: LocalObjects) -> None:
    held: list[tuple[float, float, int]] = []

    def claim(_: int) -> None:
        lease = make(local_objects, LONG_TTL_SECONDS)
        epoch = acquire(lease)
        begun = time.monotonic()
        time.sleep(0.01)
        ended = time.monotonic()
        lease.release()
        held.append((begun, ended, epoch))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(claim, range(12)))

    held.sort()
    assert [epoch for _, _, epoch in held] == list(range(1, 13))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(held))


def current(objects: ObjectStore) -> LeaseRecord:
    found = present(objects.get(KEY))
    assert set(json.loads(found.data)) == set(LeaseRecord.model_fields)
    return LeaseRecord.decode_or_none(found.data)


@pytest.mark.parametrize("damage", [b"", b'{"owner": "x", "epo', b"[]", b'{"epoch": 3}'])
def test_a_damaged_lease_is_lost_by_its_owner_and_acquired_by_the_next(
    local_objects: LocalObjects, damage: bytes
) -> None:
    owner = make(local_objects)
    acquire(owner)
    local_objects.put(KEY, damage)
    eventually(lambda: owner.is_lost, "the owner finds what it cannot read")

    known = Lease(local_objects, KEY, ttl_seconds=TTL_SECONDS, name="games", known_epoch=lambda: 7)

    assert acquire(known) == 8
    known.release()


def test_a_lease_is_released_however_its_block_ends(local_objects: LocalObjects) -> None:
    def fail() -> None:
        with make(local_objects).held(wait_seconds=0) as lease:
            assert lease.epoch == 1
            raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"):
        fail()

    assert current(local_objects).released
    with make(local_objects).held(wait_seconds=0) as successor:
        assert successor.epoch == 2


def test_an_object_is_unchanged_since_its_etag_was_first_seen() -> None:
    now = 100.0
    unchanged = UnchangedTimer(lambda: now)

    assert unchanged.seconds("a") == 0.0
    now = 107.0
    assert unchanged.seconds("a") == 7.0
    assert unchanged.seconds("b") == 0.0
    now = 108.0
    assert unchanged.seconds("b") == 1.0


def test_an_observer_sees_whether_the_lease_is_held(local_objects: LocalObjects) -> None:
    def runs() -> bool:
        return LeaseWatch(local_objects, KEY, silent_seconds=60).is_held()

    assert not runs()
    lease = make(local_objects)
    acquire(lease)
    assert runs()
    lease.release()
    assert not runs()


def test_an_observer_treats_an_unrenewed_lease_as_free(local_objects: LocalObjects) -> None:
    lease = make(local_objects)
    acquire(lease)
    pause(lease)
    outsider = LeaseWatch(local_objects, KEY, silent_seconds=0.1)

    assert outsider.is_held()
    eventually(lambda: not outsider.is_held(), "nothing changes any more")


def test_a_lease_lost_to_a_silent_storage_is_transient_and_free_for_the_next(faulty_objects: FaultyObjects) -> None:
    owner = make(faulty_objects)
    acquire(owner)
    faulty_objects.fail_before = lambda call: True
    eventually(lambda: owner.is_lost, "the owner gives up")

    error = owner.lost_error()
    assert (error.condition, error.retryable, type(error)) == ("LEASE_EXPIRED", True, TransientError)
    assert "did not answer" in error.message
    assert "successor" not in error.message
    faulty_objects.fail_before = lambda call: False
    owner.release()
    assert current(faulty_objects).released, "nobody has taken over, so the next run need not wait"


def test_a_lease_that_a_successor_has_is_not_to_be_started_again(local_objects: LocalObjects) -> None:
    owner, successor = make(local_objects), make(local_objects)
    acquire(owner)
    pause(owner)
    acquire(successor)
    resume(owner)
    eventually(lambda: owner.is_lost, "the owner finds its successor")

    error = owner.lost_error()
    assert (error.condition, error.retryable) == ("LEASE_LOST", False)
    assert "went to a successor" in error.message
    owner.release()
    assert not current(local_objects).released
    successor.release()
