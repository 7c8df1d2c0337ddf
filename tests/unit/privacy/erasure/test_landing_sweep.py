"""Landing sweeps rewrite each object exactly once, with a kill at any point, before an erasure's certificate."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.raising import open_subjects
from deltaworks.control.records.certificate import Certificate, Certificates
from deltaworks.control.records.reprocess import ReplacedObject, Replacements, WrittenObject
from deltaworks.operations.base import OperationContext
from deltaworks.operations.privacy import EraseOptions, erase
from deltaworks.operations.registry import get_operation
from deltaworks.privacy.erasure import erasure_run, landing_sweep
from deltaworks.privacy.erasure.landing_sweep import LandingReport, LandingSweep
from deltaworks.sources.objects.payloads import ReplacementTags
from deltaworks.specs.project import load_catalog
from deltaworks.testing import present
from tests.unit.privacy.erasure.landed_people import LandedPeople, order
from tests.unit.privacy.erasure.test_operation import ask
from tests.unit.sources.conftest import aws_endpoint, landing
from tests.unit.sources.objects.relay.relay_harness import relay_of, running
from tests.waiting import eventually

__all__ = ["aws_endpoint", "landing"]
KEPT = [(1, 1, 2), (1, 2, 3), (2, 0, 5), (2, 2, 7), (3, 0, 8)]


class Killed(BaseException):
    """The process was killed."""


def fill(people: LandedPeople) -> None:
    """Three objects: plain identifiers in gzip, tokens one behind the other, and nobody who goes."""
    lines = [order("ann", 1), order("bob", 2), order("cy", 3), order("ann", 4)]
    people.put("a/plain.json.gz", gzip.compress(b"\n".join(lines)))
    ann = people.token("player", "ann")
    people.put("b/tokens.json", order("bob", 5) + order(ann, 6) + order("cy", 7))
    people.put("c/others.json", order("bob", 8))
    people.relay()


@pytest.fixture(params=["bucket", "versions", "folder"])
def people(request: pytest.FixtureRequest, tmp_path: Path) -> LandedPeople:
    bucket = None
    if request.param != "folder":
        bucket = request.getfixturevalue("landing")
    if request.param == "versions":
        versioning = {"Status": "Enabled"}
        bucket.s3.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration=versioning)
    people = LandedPeople(tmp_path, bucket)
    fill(people)
    return people


def versions(people: LandedPeople) -> int:
    """Versions behind those that are current."""
    if people.landing is None:
        return 0
    listed = people.landing.s3.list_object_versions(Bucket=people.bucket).get("Versions", [])
    return sum(1 for version in listed if not version["IsLatest"])


def check_erased(people: LandedPeople) -> None:
    """Each file event is there once and reads as before but for Ann's, at the same positions."""
    people.relay()
    assert [row["key"] for row in sorted(people.logged(), key=lambda row: row["seq"])] == [
        "a/plain.json.gz",
        "b/tokens.json",
        "c/others.json",
    ]
    rows, counts = people.read()
    assert (rows, counts["erased"]) == (KEPT, 3)
    assert b"ann" not in gzip.decompress(people.content("a/plain.json.gz"))
    assert people.token("player", "ann").encode() not in people.content("b/tokens.json")
    assert (people.reconciled().unannounced, people.reconciled().missing) == ([], [])
    assert versions(people) == 0


def test_rewritten_objects_keep_their_file_events(people: LandedPeople) -> None:
    before, _ = people.read()
    assert len(before) == 8
    report = people.sweep()
    assert (report.objects, report.hits, report.rewritten, report.blocked) == (3, 2, 2, [])
    assert report.events.total() == 3
    check_erased(people)
    again = people.sweep()
    assert (again.objects, again.hits, again.rewritten) == (3, 0, 0)
    # Another person, out of objects that were put anew before.
    assert people.sweep("bob").hits == 3
    people.relay()
    rows, counts = people.read()
    assert (rows, counts["erased"], len(people.logged())) == ([(1, 2, 3), (2, 2, 7)], 6, 3)


def test_a_dry_run_counts_and_changes_nothing(people: LandedPeople) -> None:
    content = people.content("b/tokens.json")
    report = people.sweep(dry_run=True)
    assert (report.objects, report.hits, report.rewritten, report.events.total()) == (3, 2, 0, 3)
    assert report.hit_bytes < report.bytes
    assert people.content("b/tokens.json") == content
    assert Replacements(people.namespace.objects).refresh().unfinished("players") == []
    assert len(people.read()[0]) == 8


def killed(people: LandedPeople, point: str, nth: int = 1) -> bool:
    """Sweep until that point is reached so often; whether it was."""
    reached: list[str] = []

    def kill(at: str) -> None:
        reached.append(at)
        if reached.count(point) == nth:
            raise Killed

    with suppress(Killed):
        people.sweep(fault=kill)
    return reached.count(point) == nth


@pytest.mark.integration
@pytest.mark.parametrize("point", ["recorded", "put", "settled", "deleted"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_killed_sweep_is_completed_by_the_next(people: LandedPeople, point: str, nth: int) -> None:
    killed(people, point, nth)
    people.relay()
    assert len(people.logged()) == 3
    rows, _ = people.read()
    assert set(KEPT) <= set(rows)
    people.sweep()
    check_erased(people)


def test_a_kill_at_any_point_loses_no_event_and_leaves_no_token(tmp_path: Path) -> None:
    people = LandedPeople(tmp_path)
    fill(people)
    for number, point in enumerate(["recorded", "put", "settled"]):
        people.put(f"d/{number}.json", order("ann", 90) + order("bob", 91))
        assert killed(people, point)
        rows, _ = people.read()
        assert set(KEPT) <= set(rows)
    people.sweep()
    rows, counts = people.read()
    assert (rows, counts["erased"]) == (KEPT, 3)
    assert all(b"ann" not in people.content(f"d/{number}.json") for number in range(3))


def test_without_the_record_events_are_read_twice(people: LandedPeople, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protection off."""
    monkeypatch.setattr(Replacements, "original", lambda *_: None)
    people.sweep()
    people.relay()
    assert len(people.logged()) == 5


def test_without_the_lookup_objects_are_lost(people: LandedPeople, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protection off."""
    monkeypatch.setattr(ReplacementTags, "tags_for", lambda *_: [])
    people.sweep()
    assert [str(payload.problem.code) for payload in people.payloads() if payload.problem] == ["object_changed"] * 2


def test_an_object_replaced_by_its_producer_is_not_overwritten(people: LandedPeople) -> None:
    def overwrite(point: str) -> None:
        if point == "recorded":
            people.put("b/tokens.json", order("dan", 9))

    report = people.sweep(fault=overwrite)
    assert report.rewritten == 1
    assert "its producer replaced it" in report.blocked[0]
    assert people.content("b/tokens.json") == order("dan", 9)
    people.relay()
    assert len(people.logged()) == 4


def test_unreadable_objects_are_named_by_hash(people: LandedPeople) -> None:
    people.put("d/ann@example.org.json.gz", gzip.compress(order("ann", 1))[:-8])
    (named,) = people.sweep().blocked
    assert named.startswith(f"{people.bucket} sha256:")
    assert "corrupt" in named
    assert "ann" not in named


def test_an_announcement_waits_for_its_record(landing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = LandedPeople(tmp_path, landing)
    fill(people)
    record = landing_sweep._replaced_object
    monkeypatch.setattr(landing_sweep, "_replaced_object", lambda *a: record(*a).replace(new_etag="0" * 32))
    landing.returns_after(1)

    def kill(point: str) -> None:
        if point == "put":
            raise Killed

    with suppress(Killed):
        people.sweep(fault=kill)
    with running(relay_of(landing)) as relay:
        eventually(lambda: relay.counts.messages >= 1, "the announcement has come")
        assert len(people.logged()) == 3
        assert landing.waiting() != (0, 0)
        people.sweep()
        eventually(lambda: landing.waiting() == (0, 0), "it is known by now, and gone")
    check_erased(people)


def test_old_versions_of_deleted_keys_are_removed_and_others_block(landing: Any, tmp_path: Path) -> None:
    landing.s3.put_bucket_versioning(Bucket=landing.bucket, VersioningConfiguration={"Status": "Enabled"})
    people = LandedPeople(tmp_path, landing)
    people.put("a.json", order("ann", 1))
    landing.s3.delete_object(Bucket=landing.bucket, Key="a.json")
    people.put("b.json", order("ann", 2))
    people.put("b.json", order("bob", 3))
    report = people.sweep()
    assert (report.hits, report.removed_versions, report.rewritten) == (2, 1, 0)
    assert "an old version with different content" in report.blocked[0]
    assert versions(people) == 1


def test_object_properties_are_preserved(landing: Any, tmp_path: Path) -> None:
    people = LandedPeople(tmp_path, landing)
    landing.s3.put_object(
        Bucket=landing.bucket,
        Key="a.json",
        Body=order("ann", 1),
        ContentType="application/x-ndjson",
        Metadata={"first": "1", "crc": "00ff"},
        Tagging="team=shop",
    )
    people.sweep()
    head = landing.s3.head_object(Bucket=landing.bucket, Key="a.json")
    assert head["ContentType"] == "application/x-ndjson"
    assert (head["Metadata"]["first"], head["Metadata"]["crc"]) == ("1", "00ff")
    tags = landing.s3.get_object_tagging(Bucket=landing.bucket, Key="a.json")["TagSet"]
    assert tags == [{"Key": "team", "Value": "shop"}]


def replaced(etag: str, new: str, key: str = "k") -> ReplacedObject:
    return ReplacedObject(
        bucket="b",
        key=key,
        etag=etag,
        version_id=None,
        new_etag=new,
        bytes_before=2,
        bytes_after=1,
        events=1,
        landed_at="",
    )


def test_replacements_are_followed_to_their_ends_and_back(tmp_path: Path) -> None:
    objects = LandedPeople(tmp_path).namespace.objects
    first = Replacements(objects)
    plan = first.create_plan([replaced("1", "2")], namespace="players", by="tests")
    other = Replacements(objects).refresh()
    assert other.may_be_replacement("b", "k", "9")
    assert not other.may_be_replacement("b", "k", "1")
    assert not other.may_be_replacement("b", "other", "9")
    first.record_completion(plan, [WrittenObject(etag="2k")])
    Replacements(objects).create_plan([replaced("2k", "3")], namespace="viewers", by="tests")
    other.refresh()
    assert other.successors("b", "k", "1") == ["3", "2k", "2"]
    assert present(other.original("b", "k", "3")).etag == "1"
    assert other.original("b", "k", "1") is None
    assert other.unfinished("players") == []
    assert [plan.number for plan in other.unfinished("viewers")] == [2]


@pytest.fixture
def people_of_landing(tmp_path: Path) -> LandedPeople:
    people_of_landing = LandedPeople(tmp_path)
    people_of_landing.orders(("ann", "phone", None, 1), ("bob", "laptop", None, 2))
    people_of_landing.put("one.json", order("ann", 1) + order("bob", 2) + b"{broken")
    people_of_landing.put("two.json.gz", gzip.compress(order("bob", 3)))
    return people_of_landing


def certificate_of(people_of_landing: LandedPeople, request_id: str) -> Certificate:
    certificate = Certificates(
        people_of_landing.namespace.objects, "players", people_of_landing.namespace.vault.objects
    ).read(request_id)
    assert certificate is not None
    return certificate


def test_the_certificate_has_the_scanned_and_rewritten_objects(people_of_landing: LandedPeople) -> None:
    request = ask(people_of_landing, "player", "ann")
    (purged,) = people_of_landing.advance()
    assert purged.state == "purged"
    assert b'"ann"' not in people_of_landing.content("one.json")
    # Somebody else's files come late, and hold her still.
    people_of_landing.put("late.json", order("bob", 5) + order("ann", 4))
    people_of_landing.pass_time(days=8)
    (certified,) = people_of_landing.advance()
    assert (certified.state, certified.waiting_for) == ("certified", "")
    assert b'"ann"' not in people_of_landing.content("late.json")
    landing = certificate_of(people_of_landing, request.request_id).landing
    assert landing is not None
    assert (landing.objects, landing.rewritten, landing.events, landing.unreadable_events) == (3, 2, 2, 1)


def test_an_unreadable_object_blocks_and_is_named_by_hash(people_of_landing: LandedPeople) -> None:
    ask(people_of_landing, "player", "ann")
    people_of_landing.put("of-ann.json.gz", gzip.compress(order("ann", 9))[:-8])
    (purged,) = people_of_landing.advance()
    assert purged.state == "purged"
    people_of_landing.pass_time(days=8)
    (blocked,) = people_of_landing.advance()
    assert blocked.state == "vacuumed"
    assert "landed objects that cannot be rewritten: landing sha256:" in blocked.waiting_for
    assert "of-ann" not in blocked.waiting_for
    assert open_subjects(people_of_landing.namespace.objects, erasure_run.BLOCKED)
    (people_of_landing.root / "landing" / "of-ann.json.gz").unlink()
    (certified,) = people_of_landing.advance()
    assert certified.state == "certified"


def test_without_a_second_sweep_late_objects_would_be_certified(
    people_of_landing: LandedPeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    ask(people_of_landing, "player", "ann")
    people_of_landing.advance()
    people_of_landing.put("late.json", order("ann", 4))
    people_of_landing.pass_time(days=8)
    monkeypatch.setattr(LandingSweep, "run", lambda sweep: LandingReport())
    (certified,) = people_of_landing.advance()
    assert certified.state == "certified"
    assert b'"ann"' in people_of_landing.content("late.json")


def test_expiring_objects_are_not_rewritten(people_of_landing: LandedPeople) -> None:
    declared = people_of_landing.root / "project" / "include" / "pipelines" / "shop" / "pipeline.yaml"
    declared.write_text(declared.read_text().replace("tables:\n", "  erase: {landing: expire}\ntables:\n", 1))
    people_of_landing.catalog = load_catalog("local", root=people_of_landing.root / "project")
    request = ask(people_of_landing, "player", "ann")
    people_of_landing.advance()
    people_of_landing.pass_time(days=8)
    people_of_landing.advance()
    assert b'"ann"' in people_of_landing.content("one.json")
    landing = certificate_of(people_of_landing, request.request_id).landing
    assert landing is not None
    assert landing.objects == 0


def test_a_dry_run_reports_objects_and_bytes(people_of_landing: LandedPeople) -> None:
    ask(people_of_landing, "player", "ann")
    context = OperationContext(operation=get_operation("erase"), catalog=people_of_landing.catalog, subject="players")
    report = erase(context, EraseOptions(dry_run=True))
    shown = "\n".join(map(str, report.parts))
    assert "Landed objects with events to erase: 1 of 2" in shown
    assert b'"ann"' in people_of_landing.content("one.json")
