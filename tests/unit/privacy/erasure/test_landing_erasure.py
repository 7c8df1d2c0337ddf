"""Erasures sweep landed objects in the window and before the certificate, and report the result."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from deltaworks.alerts.raising import open_subjects
from deltaworks.control.records.certificate import Certificate, Certificates
from deltaworks.operations.base import OperationContext
from deltaworks.operations.privacy import EraseOptions, erase
from deltaworks.operations.registry import get_operation
from deltaworks.privacy.erasure import erasure_run
from deltaworks.privacy.erasure.landing_sweep import LandingReport, LandingSweep
from deltaworks.specs.project import load_catalog
from tests.unit.privacy.erasure.landed_people import LandedPeople, order
from tests.unit.privacy.erasure.test_erasure_run import ask


@pytest.fixture
def people(tmp_path: Path) -> LandedPeople:
    people = LandedPeople(tmp_path)
    people.orders(("ann", "phone", None, 1), ("bob", "laptop", None, 2))
    people.put("one.json", order("ann", 1) + order("bob", 2) + b"{broken")
    people.put("two.json.gz", gzip.compress(order("bob", 3)))
    return people


def certificate_of(people: LandedPeople, request_id: str) -> Certificate:
    certificate = Certificates(people.namespace.objects, "players", people.namespace.vault.objects).read(request_id)
    assert certificate is not None
    return certificate


def test_the_certificate_has_the_scanned_and_rewritten_objects(people: LandedPeople) -> None:
    request = ask(people, "player", "ann")
    (purged,) = people.advance()
    assert purged.state == "purged"
    assert b'"ann"' not in people.content("one.json")
    # Somebody else's files come late, and hold her still.
    people.put("late.json", order("bob", 5) + order("ann", 4))
    people.pass_time(days=8)
    (certified,) = people.advance()
    assert (certified.state, certified.waiting_for) == ("certified", "")
    assert b'"ann"' not in people.content("late.json")
    landing = certificate_of(people, request.request_id).landing
    assert landing is not None
    assert (landing.objects, landing.rewritten, landing.events, landing.unreadable_events) == (3, 2, 2, 1)


def test_an_unreadable_object_blocks_and_is_named_by_hash(people: LandedPeople) -> None:
    ask(people, "player", "ann")
    people.put("of-ann.json.gz", gzip.compress(order("ann", 9))[:-8])
    (purged,) = people.advance()
    assert purged.state == "purged"
    people.pass_time(days=8)
    (blocked,) = people.advance()
    assert blocked.state == "vacuumed"
    assert "landed objects that cannot be rewritten: landing sha256:" in blocked.waiting_for
    assert "of-ann" not in blocked.waiting_for
    assert open_subjects(people.namespace.objects, erasure_run.BLOCKED)
    (people.root / "landing" / "of-ann.json.gz").unlink()
    (certified,) = people.advance()
    assert certified.state == "certified"


def test_without_a_second_sweep_late_objects_would_be_certified(
    people: LandedPeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    ask(people, "player", "ann")
    people.advance()
    people.put("late.json", order("ann", 4))
    people.pass_time(days=8)
    monkeypatch.setattr(LandingSweep, "run", lambda sweep: LandingReport())
    (certified,) = people.advance()
    assert certified.state == "certified"
    assert b'"ann"' in people.content("late.json")


def test_expiring_objects_are_not_rewritten(people: LandedPeople) -> None:
    declared = people.root / "project" / "include" / "pipelines" / "shop" / "pipeline.yaml"
    declared.write_text(declared.read_text().replace("tables:\n", "  erase: {landing: expire}\ntables:\n", 1))
    people.catalog = load_catalog("local", root=people.root / "project")
    request = ask(people, "player", "ann")
    people.advance()
    people.pass_time(days=8)
    people.advance()
    assert b'"ann"' in people.content("one.json")
    landing = certificate_of(people, request.request_id).landing
    assert landing is not None
    assert landing.objects == 0


def test_a_dry_run_reports_objects_and_bytes(people: LandedPeople) -> None:
    ask(people, "player", "ann")
    context = OperationContext(operation=get_operation("erase"), catalog=people.catalog, subject="players")
    report = erase(context, EraseOptions(dry_run=True))
    shown = "\n".join(map(str, report.parts))
    assert "Landed objects with events to erase: 1 of 2" in shown
    assert b'"ann"' in people.content("one.json")
