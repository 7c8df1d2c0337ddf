"""The vault's job stores each sealed value once, encrypted with its subject's key, and then deletes the sealed file."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deltaworks.control import paths as control_paths
from deltaworks.control.objects import LocalObjects, open_objects
from deltaworks.control.records.erasure import read_vault_heartbeat
from deltaworks.errors import TransientError
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import TOKEN_PURPOSE, LocalKeyring, key_context
from deltaworks.privacy.stored_keys import get_or_create_key
from deltaworks.privacy.tokens.envelope_encryption import Identity, suppression_digest
from deltaworks.privacy.tokens.suppression import SuppressionRecord
from deltaworks.privacy.vault.job import maintain, reason_to_ingest, run_ingest
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.privacy.vault.tables import CellAddress, VaultTables, open_cell
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.testing import present
from tests.unit.privacy.vault.vault_harness import (
    AT_MS,
    DAY_MS,
    NAMESPACE,
    device_of,
    email_of,
    environment_of,
    seal_file,
    subject_of,
)

Seal = Callable[[str, Sequence[Identity]], str]


def test_an_ingest_has_no_work_only_if_nothing_waits_and_one_ran_within_the_hour(
    environment: EnvironmentSpec, objects: LocalObjects, seal: Seal
) -> None:
    assert reason_to_ingest(environment, NAMESPACE) == "no ingest has run within the hour"
    run_ingest(environment, NAMESPACE, dry_run=False)
    ran = present(read_vault_heartbeat(open_objects(environment.lake), NAMESPACE))
    now = datetime.fromisoformat(ran.written_at)

    assert reason_to_ingest(environment, NAMESPACE, now=now + timedelta(minutes=5)) == ""
    looked = present(read_vault_heartbeat(open_objects(environment.lake), NAMESPACE))
    assert looked.caught_up_at == (now + timedelta(minutes=5)).isoformat()
    assert looked == ran.replace(caught_up_at=looked.caught_up_at)
    assert reason_to_ingest(environment, NAMESPACE, now=now + timedelta(hours=1)) != ""

    key = seal("1-2", [email_of("ada")])
    assert reason_to_ingest(environment, NAMESPACE, now=now) == "1 sealed files wait"
    writer = key.removeprefix(paths.sealed_files_path()).partition("/")[0]
    assert reason_to_ingest(environment, NAMESPACE, other_pipelines={writer}, now=now) == "", "another namespace's"
    failing = ran.replace(failure_condition="KEY_SERVICE_UNREACHABLE")
    open_objects(environment.lake).put(control_paths.vault_heartbeat(NAMESPACE), failing.encode())
    assert "KEY_SERVICE_UNREACHABLE" in reason_to_ingest(environment, NAMESPACE, now=now)


def test_a_new_suppressed_subject_is_work_of_an_ingest(environment: EnvironmentSpec) -> None:
    run_ingest(environment, NAMESPACE, dry_run=False)
    beat = present(read_vault_heartbeat(open_objects(environment.lake), NAMESPACE))
    open_objects(environment.lake).put(
        control_paths.vault_heartbeat(NAMESPACE), beat.replace(suppression=beat.suppression + 1).encode()
    )

    assert reason_to_ingest(environment, NAMESPACE) == "the list of suppressed subjects has changed"


def values_of(environment: EnvironmentSpec, *names: str) -> dict[tuple[str, str], str]:
    """What the vault has of players, opened."""
    home = NamespaceVault.open(environment, NAMESPACE)
    subjects = {subject_of(name): name for name in names}
    keys = home.keys.get(subjects)
    rows = home.tables.identities(subjects=list(subjects)).to_pylist()
    return {
        (subjects[row["subject"]], row["kind"]): open_cell(
            row["value"], keys[row["subject"]], CellAddress(NAMESPACE, row["subject"], row["kind"], row["token"])
        )
        for row in rows
    }


def sealed_keys(objects: LocalObjects) -> list[str]:
    return objects.list(paths.sealed_files_path())


def test_what_was_sealed_is_in_the_vault_once_and_its_file_is_gone(
    environment: EnvironmentSpec, objects: LocalObjects, seal: Seal
) -> None:
    seal("1-2", [email_of("ada"), device_of("ada", "tablet"), email_of("ada", at_ms=AT_MS + 5)])
    seal("3-4", [email_of("bob"), email_of("ada")])

    result = run_ingest(environment, NAMESPACE, dry_run=False)

    assert (result.files, result.identities, result.remaining) == (2, 4, 0)
    assert values_of(environment, "ada", "bob") == {
        ("ada", "email"): "ada@example.org",
        ("bob", "email"): "bob@example.org",
    }
    home = NamespaceVault.open(environment, NAMESPACE)
    tablet = device_of("ada", "tablet")
    assert [row["subject"] for row in home.tables.links(tokens=[tablet.token]).to_pylist()] == [subject_of("ada")]
    assert sealed_keys(objects) == []


def test_no_value_lies_in_the_vault_in_plain(environment: EnvironmentSpec, seal: Seal, tmp_path: Path) -> None:
    seal("1-2", [email_of("ada")])

    run_ingest(environment, NAMESPACE, dry_run=False)

    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"ada@example" in path.read_bytes()]


def test_a_dry_run_opens_and_counts_and_changes_nothing(
    environment: EnvironmentSpec, objects: LocalObjects, seal: Seal
) -> None:
    seal("1-2", [email_of("ada")])
    before = objects.list("")

    result = run_ingest(environment, NAMESPACE)

    assert (result.files, result.identities) == (1, 1)
    assert objects.list("") == before
    assert read_vault_heartbeat(open_objects(environment.lake), NAMESPACE) is None


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(st.lists(st.sampled_from(["ada", "bob", "cy"]), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_whatever_order_and_however_often_it_comes_the_rows_are_those_of_one_pass(
    names: list[str], chance: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = environment_of(Path(folder))
        objects, keyring = LocalObjects(Path(folder) / "vault"), LocalKeyring(Path(folder) / "keys")
        seen: dict[str, list[int]] = defaultdict(list)
        for number, name in enumerate(names):
            at = AT_MS + chance.randrange(5) * 2 * DAY_MS
            seen[name].append(at)
            for copy in range(chance.randrange(1, 3)):
                seal_file(
                    objects, keyring, f"{number}-{copy}", [email_of(name, at_ms=at), device_of(name, "x", at_ms=at)]
                )
            if chance.random() < 0.3:
                run_ingest(environment, NAMESPACE, dry_run=False)
        run_ingest(environment, NAMESPACE, dry_run=False)

        tables = NamespaceVault.open(environment, NAMESPACE).tables
        rows = tables.identities(subjects=[subject_of(name) for name in seen]).to_pylist()
        assert {(row["subject"], *_times(row)) for row in rows} == {
            (subject_of(name), min(times), max(times)) for name, times in seen.items()
        }
        # Of each an email, and with it a link to the email and one to the device.
        assert len(rows) == len(seen)
        assert tables.links(subjects=[subject_of(name) for name in seen]).num_rows == 2 * len(seen)


def _times(row: dict[str, Any]) -> tuple[int, int]:
    return round(row["first_seen"].timestamp() * 1000), round(row["last_seen"].timestamp() * 1000)


class Killed(BaseException):
    """Ends the job where it is, as SIGKILL would."""


STEPS = {
    "before the cells are merged": (VaultTables, "merge_identities", "before"),
    "behind the cells": (VaultTables, "merge_identities", "after"),
    "behind the links": (VaultTables, "merge_links", "after"),
    "before a file is deleted": (LocalObjects, "delete", "before"),
    "behind the first file": (LocalObjects, "delete", "after"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_dies_at_any_step_is_repeated_to_the_same_rows(
    step: str, environment: EnvironmentSpec, seal: Seal, objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal("1-2", [email_of("ada"), device_of("ada", "tablet")])
    seal("3-4", [email_of("ada"), email_of("bob")])
    owner, name, when = STEPS[step]
    original = getattr(owner, name)

    def dying(*arguments: Any, **more: Any) -> Any:
        if when == "after":
            original(*arguments, **more)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dying)
        with pytest.raises(Killed):
            run_ingest(environment, NAMESPACE, dry_run=False)
    # What a dead process holds is free after its time; here at once.
    objects.delete("work/players/lease.json")

    run_ingest(environment, NAMESPACE, dry_run=False)

    assert len(values_of(environment, "ada", "bob")) == 2
    assert NamespaceVault.open(environment, NAMESPACE).tables.links(subjects=[subject_of("ada")]).num_rows == 2
    assert sealed_keys(objects) == []


def test_a_file_that_cannot_be_opened_stays_and_stops_no_other(
    environment: EnvironmentSpec, objects: LocalObjects, seal: Seal
) -> None:
    key = seal("1-2", [email_of("ada")])
    stored = present(objects.get(key))
    objects.put(key, stored.data[:-1])
    objects.put(paths.sealed_files_path("edge/9-9.dws"), b"no sealed file")
    seal("3-4", [email_of("bob")])

    result = run_ingest(environment, NAMESPACE, dry_run=False)

    assert (result.files, result.remaining, len(result.damaged)) == (1, 2, 2)
    assert values_of(environment, "ada", "bob") == {("bob", "email"): "bob@example.org"}
    beat = present(read_vault_heartbeat(open_objects(environment.lake), NAMESPACE))
    assert all(name.endswith("SEALED_UNREADABLE") for name in beat.unreadable)
    assert beat.caught_up_at, "what cannot be opened is no backlog"


def test_somebody_on_the_list_is_not_taken_in_and_gets_no_key(environment: EnvironmentSpec, seal: Seal) -> None:
    lake = open_objects(environment.lake)
    home = NamespaceVault.open(environment, NAMESPACE)
    context = key_context(NAMESPACE, TOKEN_PURPOSE)
    token_key = get_or_create_key(home.service, lake, key=paths.token_key_path(NAMESPACE), context=context)
    record = SuppressionRecord(
        namespace=NAMESPACE,
        number=1,
        request_id="r1",
        created_at="2026-11-20T00:00:00+00:00",
        digests=(suppression_digest(token_key, subject_of("ada")),),
    )
    lake.put(paths.suppression_record_key(NAMESPACE, 1), record.encode())
    seal("1-2", [email_of("ada"), email_of("bob")])

    result = run_ingest(environment, NAMESPACE, dry_run=False)

    assert (result.suppressed, result.suppression) == (1, 1)
    assert home.keys.get([subject_of("ada")]) == {}
    assert values_of(environment, "ada", "bob") == {("bob", "email"): "bob@example.org"}


def test_somebody_who_was_shredded_and_comes_back_has_a_new_key_and_a_cell_that_opens(
    environment: EnvironmentSpec, seal: Seal
) -> None:
    seal("1-2", [email_of("ada")])
    run_ingest(environment, NAMESPACE, dry_run=False)
    NamespaceVault.open(environment, NAMESPACE).keys.shred([subject_of("ada")])
    seal("3-4", [email_of("ada", at_ms=AT_MS + DAY_MS)])

    run_ingest(environment, NAMESPACE, dry_run=False)

    assert values_of(environment, "ada") == {("ada", "email"): "ada@example.org"}


def test_a_file_of_several_namespaces_is_split_and_each_takes_its_own(
    environment: EnvironmentSpec, objects: LocalObjects, keyring: LocalKeyring
) -> None:
    seal_file(objects, keyring, "1-2", [email_of("ada")], others={"readers": [email_of("bob")]})

    run_ingest(environment, NAMESPACE, dry_run=False)

    assert values_of(environment, "ada", "bob") == {("ada", "email"): "ada@example.org"}
    assert sealed_keys(objects) == ["sealed/edge/1-2~readers.dws"]
    assert run_ingest(environment, "readers", dry_run=False).files == 1
    assert sealed_keys(objects) == []


def test_a_key_service_that_is_down_leaves_all_where_it_is_and_is_on_record(
    environment: EnvironmentSpec, objects: LocalObjects, seal: Seal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal("1-2", [email_of("ada")])

    def away(*_: Any, **__: Any) -> bytes:
        raise TransientError("KEY_SERVICE_UNREACHABLE", "it is away")

    with monkeypatch.context() as patched:
        patched.setattr(LocalKeyring, "unwrap", away)
        with pytest.raises(TransientError, match="KEY_SERVICE_UNREACHABLE"):
            run_ingest(environment, NAMESPACE, dry_run=False)

    beat = present(read_vault_heartbeat(open_objects(environment.lake), NAMESPACE))
    assert beat.failure_condition == "KEY_SERVICE_UNREACHABLE"
    assert len(sealed_keys(objects)) == 1
    run_ingest(environment, NAMESPACE, dry_run=False)
    after = present(read_vault_heartbeat(open_objects(environment.lake), NAMESPACE))
    assert (after.failure_condition, sealed_keys(objects)) == ("", [])


def test_what_could_not_be_read_is_kept_by_day_and_dies_with_the_key_of_its_day(
    environment: EnvironmentSpec, objects: LocalObjects, keyring: LocalKeyring
) -> None:
    days = {"2026-11-01": [b"{broken"], "2026-11-20": [b"also broken"]}
    seal_file(objects, keyring, "1-2", [email_of("ada")], unreadable=days)
    result = run_ingest(environment, NAMESPACE, dry_run=False)
    assert (result.unreadable, sealed_keys(objects)) == (2, [])
    assert len(objects.list("unreadable/players/")) == 2

    counted = maintain(environment, NAMESPACE, unreadable_retention_days=14, today=date(2026, 11, 23))[1]
    _, done, _ = maintain(environment, NAMESPACE, unreadable_retention_days=14, today=date(2026, 11, 23), dry_run=False)

    assert (counted.days, counted.objects, done.days, done.objects) == (1, 1, 1, 1)
    assert objects.list(paths.day_keys_folder(NAMESPACE)) == ["keys/days/players/2026-11-20.json"]
    assert objects.list("unreadable/players/") == ["unreadable/players/2026-11-20/edge-1-2.dws"]


def test_two_merges_at_once_both_land(environment: EnvironmentSpec, seal: Seal) -> None:
    seal("1-2", [email_of("ada")])
    run_ingest(environment, NAMESPACE, dry_run=False)
    one, other = (NamespaceVault.open(environment, NAMESPACE).tables for _ in range(2))
    rows = one.identities(subjects=[subject_of("ada")])
    one.merge_identities(rows)

    other.merge_identities(rows.set_column(1, "subject", pa.array([subject_of("bob")])))

    assert one.identities(subjects=[subject_of("ada"), subject_of("bob")]).num_rows == 2
