"""An erasure from request to certificate, without effects on others; dry runs count, rows are purged at night."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import clock, paths
from deltaworks.control.listing import Listing
from deltaworks.control.provenance import PERSON_VARIABLE, RUN_VARIABLE
from deltaworks.control.records.certificate import Certificates
from deltaworks.control.records.erasure import ErasureRequest
from deltaworks.errors import ConfigError, ContractError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.privacy import EraseOptions, erase
from deltaworks.operations.registry import get_operation
from deltaworks.privacy.erasure import erasure_run
from deltaworks.privacy.erasure.requests import receive_request, token_of
from deltaworks.privacy.erasure.scan import scan_namespace
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.paths import control_path
from deltaworks.privacy.tokens.envelope_encryption import suppression_digest
from deltaworks.privacy.tokens.suppression import read_suppression
from deltaworks.testing import write_files
from tests.unit.privacy.erasure.people_lake import DAY, INVOICES, QUARANTINE, PeopleLake


@pytest.fixture
def two_people(tmp_path: Path) -> PeopleLake:
    two_people = PeopleLake(tmp_path)
    two_people.orders(("ann", None, None, 1), ("bob", None, None, 2))
    return two_people


def run(two_people: PeopleLake, **options: object) -> Report:
    context = OperationContext(operation=get_operation("erase"), catalog=two_people.catalog, subject="players")
    return erase(context, EraseOptions.model_validate(options))


def test_a_dry_run_counts_rows_and_dates_by_table(two_people: PeopleLake) -> None:
    request = ask(two_people, "player", "ann")
    (counted,) = run(two_people).results
    shown = (counted.table, counted.rows, counted.first_date)  # type: ignore[attr-defined]
    assert shown == ("orders", 1, "2026-03-01")
    assert request_of(two_people, request).state == "received"
    assert two_people.amounts() == [1, 2]


@pytest.mark.parametrize(("hour", "state"), [(3, "purged"), (14, "shredded")])
def test_rows_are_purged_at_night(
    two_people: PeopleLake, monkeypatch: pytest.MonkeyPatch, hour: int, state: str
) -> None:
    request = ask(two_people, "player", "ann")
    at = dt.datetime.now(dt.UTC).replace(hour=hour)
    monkeypatch.setattr(clock, "utc_now", lambda: at)
    run(two_people, dry_run=False)
    assert request_of(two_people, request).state == state


def test_rows_are_purged_immediately_on_request(two_people: PeopleLake) -> None:
    ask(two_people, "player", "ann")
    run(two_people, dry_run=False, window="now")
    assert two_people.amounts() == [2]


@pytest.fixture
def shared(two_people: PeopleLake) -> PeopleLake:
    """Five players with one email."""
    email = two_people.token("email", "all@example.org")
    two_people.identities(*((two_people.token("player", f"player{number}"), "email", email) for number in range(5)))
    return two_people


def texts(report: Report) -> str:
    return "\n".join(part for part in report.parts if not isinstance(part, Listing))


def test_a_dry_run_shows_how_many_subjects_a_request_erases_and_spares(shared: PeopleLake) -> None:
    ask(shared, "player", "ann")
    ask(shared, "email", "all@example.org")

    shown = texts(run(shared))

    assert shown.count("It erases 1 subject:") == 2
    assert "it spares 5 subjects:" in shown
    assert shared.token("player", "player1") in shown


def test_the_triggering_user_of_the_dag_confirms_a_request(shared: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(shared, "email", "all@example.org")
    run(shared, dry_run=False)
    assert request_of(shared, request).state == "resolved"
    monkeypatch.setenv(RUN_VARIABLE, "players__erase/manual__1/erase/1")
    monkeypatch.setenv(PERSON_VARIABLE, "tests")
    with pytest.raises(ConfigError, match="ERASURE_NOT_CONFIRMED"):
        run(shared, dry_run=False, confirm=(request.request_id,))
    monkeypatch.setenv(PERSON_VARIABLE, "grace")

    run(shared, dry_run=False, confirm=(request.request_id,), window="never")

    confirmed = request_of(shared, request)
    assert (confirmed.state, confirmed.is_confirmed) == ("shredded", True)
    assert [step.by for step in confirmed.steps if step.state == "confirmed"] == ["grace"]


def test_a_dry_run_confirms_nothing(shared: PeopleLake) -> None:
    request = ask(shared, "email", "all@example.org")
    run(shared, dry_run=False)

    run(shared, confirm=(request.request_id,))

    assert not request_of(shared, request).is_confirmed


def test_an_unknown_request_is_not_confirmed(two_people: PeopleLake) -> None:
    with pytest.raises(ConfigError, match="ERASURE_UNKNOWN"):
        run(two_people, dry_run=False, confirm=("e20260101-0000000000",))


@pytest.fixture
def lake(tmp_path: Path) -> PeopleLake:
    """Ann, who has a phone of her own and shares a tablet with Bob, in orders, quarantine, invoices and the vault."""
    lake = PeopleLake(tmp_path)
    lake.orders(("ann", "phone", "ann@example.org", 1), ("bob", "laptop", None, 2), (None, "phone", None, 3))
    lake.orders(("bob", "tablet", "bob@example.org", 4), ("ann", "tablet", None, 5), (None, "tablet", None, 6))
    raw = json.dumps({"player": lake.token("player", "ann"), "amount": "many"})
    lake.add("quarantine", [{"quarantine_date": DAY, "reason": "type", "raw": raw}], QUARANTINE)
    lake.add("invoices", [{"event_date": DAY, "player": lake.token("player", "ann")}], INVOICES)
    ann, bob = lake.token("player", "ann"), lake.token("player", "bob")
    lake.identities((ann, "email", lake.token("email", "ann@example.org")))
    lake.identities((bob, "email", lake.token("email", "bob@example.org")))
    lake.links((ann, lake.token("device", "phone")), (ann, lake.token("device", "tablet")))
    lake.links((bob, lake.token("device", "tablet")), (bob, lake.token("device", "laptop")))
    return lake


def ask(lake: PeopleLake, kind: str = "email", value: str = "Ann@Example.org ", days_ago: int = 0) -> ErasureRequest:
    space = lake.namespace
    received = dt.datetime.now(dt.UTC) - dt.timedelta(days=days_ago)
    return receive_request(space, token_of(space, kind=kind, value=value), received_at=received, by="tests")


def tokens(lake: PeopleLake) -> list[str]:
    """What is to be nowhere: of the devices only her own."""
    kinds = (("player", "ann"), ("email", "ann@example.org"), ("device", "phone"))
    return [lake.token(kind, value) for kind, value in kinds]


def request_of(lake: PeopleLake, request: ErasureRequest) -> ErasureRequest:
    return lake.namespace.erasures.request(request.request_id)


def test_a_person_is_found_before_the_erasure_and_not_after(lake: PeopleLake) -> None:
    search = TokenSearch(tokens(lake))
    before = scan_namespace(lake.namespace, search)
    assert len(before.keys_with("leak", search.tokens)) >= 5
    request = ask(lake)

    (purged,) = lake.advance()
    assert (purged.state, "VACUUM retention" in purged.waiting_for) == ("purged", True)
    assert lake.amounts() == [2, 4, 6]
    lake.pass_time(days=8)
    (certified,) = lake.advance()

    assert (certified.state, certified.waiting_for) == ("certified", "")
    after = scan_namespace(lake.namespace, search)
    assert after.keys_with("leak", search.tokens) == set()
    assert lake.amounts() == [2, 4, 6]
    certificate = Certificates(lake.namespace.objects, "players", lake.namespace.vault.objects).read(request.request_id)
    assert certificate is not None
    assert (certificate.tokens, certificate.shared_tokens) == (3, 1)
    assert certificate.tokens_sha256 == hashlib.sha256("\n".join(sorted(tokens(lake))).encode()).hexdigest()
    assert certificate.scan.hits_before >= 5
    by_table = {table.table: table for table in certificate.tables}
    assert (by_table["orders"].rows_before, by_table["orders"].rows_after, by_table["orders"].person_rows) == (6, 3, 3)
    assert by_table["quarantine"].person_rows == 1
    assert by_table["invoices"].retention_reason == "invoices are kept for ten years"
    assert certificate.scan.retained == 2  # a file, and the commit with its bounds


def test_no_record_contains_personal_data(lake: PeopleLake) -> None:
    ask(lake)
    lake.advance()
    lake.pass_time(days=8)
    lake.advance()
    folder = lake.root / "lake" / control_path("players")
    written = b"".join(path.read_bytes() for path in folder.rglob("*.json"))
    assert not TokenSearch([], predicate=lambda text: True).tokens_in_bytes(written)
    assert b"example.org" not in written
    assert list((lake.root / "vault" / "requests").rglob("*.json")) == []


def test_the_suppression_list_has_the_person_immediately(lake: PeopleLake) -> None:
    ask(lake)
    lake.advance(may_purge=False)
    space = lake.namespace
    suppression = read_suppression(space.objects, "players")
    assert all(suppression_digest(space.token_key, token) in suppression for token in tokens(lake))
    tablet = suppression_digest(space.token_key, lake.token("device", "tablet"))
    assert tablet not in suppression


def test_the_key_of_the_subject_is_destroyed(lake: PeopleLake) -> None:
    space = lake.namespace
    ann, bob = lake.token("player", "ann"), lake.token("player", "bob")
    space.vault.keys.get_or_create([ann, bob])
    ask(lake)
    lake.advance(may_purge=False)
    assert set(lake.namespace.vault.keys.get([ann, bob])) == {bob}


def test_a_second_request_for_the_same_person_on_a_day_is_the_same(lake: PeopleLake) -> None:
    assert ask(lake).request_id == ask(lake).request_id


def test_certificates_are_a_chain(lake: PeopleLake) -> None:
    ask(lake)
    ask(lake, "player", "bob")
    lake.advance()
    lake.pass_time(days=8)
    assert [result.state for result in lake.advance()] == ["certified", "certified"]
    certificates = Certificates(lake.namespace.objects, "players", lake.namespace.vault.objects)
    assert certificates.check() == 2
    first = next(
        path
        for path in (lake.root / "lake" / paths.erasure_certificate("players")).glob("*.json")
        if json.loads(path.read_text())["number"] == 1
    )
    first.write_text(first.read_text().replace('"hits": 0', '"hits": 1'))
    with pytest.raises(ContractError, match="CERTIFICATES_BROKEN"):
        certificates.check()


def test_waiting_requests_share_one_window(lake: PeopleLake) -> None:
    ask(lake)
    ask(lake, "player", "bob")
    lake.advance()
    assert lake.amounts() == [6] or lake.amounts() == []
    window = lake.namespace.objects.list(control_path("players", "windows/"))
    assert [key for key in window if key.endswith("windows/000001.json")] == [paths.erasure_window("players", 1)]
    assert paths.erasure_window("players", 2) not in window


def test_one_vacuum_serves_all_due_windows(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(lake)
    lake.advance()
    ask(lake, "player", "bob")
    lake.advance()
    assert lake.namespace.objects.get(paths.erasure_window("players", 2)) is not None
    lake.pass_time(days=8)
    real, vacuums = erasure_run.vacuum_tables, []

    def counted(*args: Any, **options: Any) -> Any:
        vacuums.append(args[2])
        return real(*args, **options)

    monkeypatch.setattr(erasure_run, "vacuum_tables", counted)

    assert [result.state for result in lake.advance()] == ["certified", "certified"]
    assert vacuums == ["shop"]


def test_no_request_is_verified_while_a_file_has_a_token(lake: PeopleLake) -> None:
    request = ask(lake)
    lake.advance()
    left = lake.root / "lake" / paths.table("shop", "orders") / "_left_by_somebody.json.tmp"
    left.write_text(json.dumps({"player": tokens(lake)[0]}))
    lake.pass_time(days=8)
    (waiting,) = lake.advance()
    assert waiting.state == "vacuumed"
    assert "_left_by_somebody" in waiting.waiting_for
    left.unlink()
    (certified,) = lake.advance()
    assert certified.state == "certified"
    assert not request_of(lake, request).is_open


def test_a_request_waits_for_older_sealed_files(lake: PeopleLake) -> None:
    ask(lake)
    lake.advance()
    sealed = lake.root / "vault" / "sealed" / "edge" / "1-2.dws"
    write_files(lake.root, {"vault/sealed/edge/1-2.dws": b"sealed before she was suppressed"})
    lake.pass_time(days=8)
    (waiting,) = lake.advance()
    assert (waiting.state, "sealed files" in waiting.waiting_for) == ("vacuumed", True)
    sealed.unlink()
    (certified,) = lake.advance()
    assert certified.state == "certified"
