"""The simulated sales platform: the same for a seed, with everything that goes wrong, and rightly answered."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import orjson
import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.errors import ConfigError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.specs.project import load_catalog
from generator.engagement import EngagementRecord, engagement_records, generate_engagement, write_engagement
from generator.engagement_org import Activity, Request
from generator.engagement_settings import EngagementRates, EngagementSettings
from generator.engagement_truth import EngagementTruth
from tests.unit.mutations import replay_oracle as oracle

SETTINGS = EngagementSettings(activities=6_000, organisations=60, seed=3)


@pytest.fixture(scope="module")
def delivered() -> list[EngagementRecord]:
    return list(engagement_records(SETTINGS))


@pytest.fixture(scope="module")
def truth() -> EngagementTruth:
    return generate_engagement(SETTINGS, lambda topic, key, value: None)


def requests_of(delivered: list[EngagementRecord]) -> list[Request]:
    return [piece.event for piece in delivered if isinstance(piece.event, Request)]


def activities_of(delivered: list[EngagementRecord]) -> list[Activity]:
    return [piece.event for piece in delivered if isinstance(piece.event, Activity)]


def test_a_seed_decides_every_byte(delivered: list[EngagementRecord]) -> None:
    def digest(found: list[EngagementRecord]) -> str:
        return hashlib.sha256(b"\n".join(piece.value for piece in found)).hexdigest()

    other = EngagementSettings(activities=6_000, organisations=60, seed=4)
    assert digest(list(engagement_records(SETTINGS))) == digest(delivered)
    assert digest(list(engagement_records(other))) != digest(delivered)


def test_organisations_have_the_sizes_of_a_power_law_and_a_fifth_as_many_requests(
    delivered: list[EngagementRecord],
) -> None:
    sizes = Counter(activity.org_id for activity in activities_of(delivered))

    ordered = sorted(sizes.values(), reverse=True)
    assert ordered[0] > 8 * median(ordered)
    distinct = len({activity.event_id for activity in activities_of(delivered)})
    # One seq in a hundred is asked for once more.
    asked = len({(request.org_id, request.seq) for request in requests_of(delivered)})
    assert asked / distinct == pytest.approx(0.2, rel=0.1)


def test_all_that_is_hard_about_requests_is_there(delivered: list[EngagementRecord]) -> None:
    requests, activities = requests_of(delivered), activities_of(delivered)
    seen: Counter[str] = Counter(request.op for request in requests)
    renamed_away: defaultdict[str, set[str]] = defaultdict(set)
    came: defaultdict[str, set[str]] = defaultdict(set)
    newest_ms: Counter[str] = Counter()
    moves_at: Counter[tuple[str, int, str]] = Counter()
    pairs = {(request.org_id, request.at_ms, request.id, request.new_id) for request in requests}
    first_use: dict[tuple[str, str], int] = {}
    for activity in sorted(activities, key=lambda each: each.at_ms):
        first_use.setdefault((activity.org_id, activity.contact_id), activity.at_ms)
    for piece in delivered:
        event = piece.event
        if event is None:
            seen["malformed"] += 1
            continue
        seen["late"] += event.at_ms < newest_ms[event.org_id]
        newest_ms[event.org_id] = max(newest_ms[event.org_id], event.at_ms)
        if isinstance(event, Activity):
            seen["old id"] += event.contact_id in renamed_away[event.org_id]
            continue
        seen["late request"] += event.at_ms < newest_ms[event.org_id]
        seen["before its target"] += first_use.get((event.org_id, event.id), 0) > event.at_ms
        if event.op in ("rename", "merge") and event.new_id is not None:
            moves_at[event.org_id, event.at_ms, event.id] += 1
            seen["self-rename"] += event.new_id == event.id
            seen["swap"] += (event.org_id, event.at_ms, event.new_id, event.id) in pairs and event.id != event.new_id
            seen["cascade"] += event.id in came[event.org_id]
            seen["cycle"] += event.new_id in renamed_away[event.org_id]
            renamed_away[event.org_id].add(event.id)
            came[event.org_id].add(event.new_id)
    seen["tie"] = sum(count > 1 for count in moves_at.values())
    seen["duplicate"] = len(requests) - len({(request.org_id, request.seq) for request in requests})

    assert all(count > 3 for count in seen.values()), seen
    assert {"rename", "merge", "update", "delete", "undelete", "rename_name", "old id", "malformed"} <= seen.keys()


def test_the_truth_agrees_with_a_replay_of_every_row_at_every_time(
    delivered: list[EngagementRecord], truth: EngagementTruth
) -> None:
    told = {row["event_id"]: row for row in truth.rows.to_pylist()}
    requests: defaultdict[str, list[oracle.Request]] = defaultdict(list)
    for each in requests_of(delivered):
        fields = {} if each.template_id is None else {"template_id": each.template_id}
        requests[each.org_id].append(
            oracle.Request(time=each.at_ms, op=each.op, id=each.id, new_id=each.new_id, fields=fields, seq=each.seq)
        )
    # The slow replay is quadratic; the largest organisations would take minutes.
    sizes = Counter(activity.org_id for activity in activities_of(delivered))
    activities = {each.event_id: each for each in activities_of(delivered) if sizes[each.org_id] < 300}
    checked = 0
    for org_id in {each.org_id for each in activities.values()}:
        own = [each for each in activities.values() if each.org_id == org_id]
        rows = oracle.replay([oracle.Row(origin=each.contact_id, time=each.at_ms) for each in own], requests[org_id])
        for activity, row in zip(own, rows, strict=True):
            wanted = (row.id, row.deleted, row.fields.get("template_id", activity.template_id))
            answer = told[activity.event_id]
            assert (answer["contact_id"], answer["deleted"], answer["template_id"]) == wanted, activity
            checked += 1
    assert checked > 2_000


def test_the_pipeline_reads_what_is_delivered(delivered: list[EngagementRecord], truth: EngagementTruth) -> None:
    spec = load_catalog().pipeline("engagement")
    payloads = [Payload(seq, piece.topic, piece.value) for seq, piece in enumerate(delivered)]

    rows: Counter[str] = Counter()
    for name, part in Parser(spec, redaction_keys=RedactionKeys(bytes(32))).parse(payloads, BatchMetadata(0, 0, "")):
        rows[name] += part.num_rows

    expected = {"activities": truth.activities, "requests": truth.requests, "quarantine": truth.malformed}
    assert rows == expected
    assert {piece.topic for piece in delivered} == set(spec.source.topics)


def test_files_hold_every_record_and_the_answers(
    tmp_path: Path, delivered: list[EngagementRecord], truth: EngagementTruth
) -> None:
    written = write_engagement(SETTINGS, tmp_path)

    for topic in {piece.topic for piece in delivered}:
        lines = (tmp_path / f"{topic}.jsonl").read_bytes().splitlines()
        assert lines == [piece.value for piece in delivered if piece.topic == topic]
    read = EngagementTruth.read(tmp_path)
    assert read.rows == written.rows == truth.rows
    assert read.names == truth.names
    assert read.counts() == truth.counts()
    assert orjson.loads((tmp_path / "truth.json").read_bytes())["moved"] > 1_000


def test_a_name_follows_its_contact_and_the_targets_stays_where_two_meet() -> None:
    def named(*asked: tuple[int, str, str, str | None, str | None]) -> dict[str, str]:
        from generator.engagement_truth import EngagementLog

        log = EngagementLog(SETTINGS)
        for seq, (at, op, each, new_id, name) in enumerate(asked):
            log.record(Request(at, "o", seq, op, each, new_id, name))
        return {row["id"]: row["name"] for row in log.truth().names.to_pylist()}

    ada, bob = (1, "rename_name", "a", None, "Ada"), (1, "rename_name", "b", None, "Bob")
    assert named(ada, (2, "rename", "a", "c", None), (3, "rename", "c", "d", None)) == {"d": "Ada"}
    assert named(ada, bob, (2, "merge", "a", "b", None)) == {"b": "Bob"}
    assert named(ada, bob, (2, "rename", "a", "b", None), (2, "rename", "b", "a", None)) == {"a": "Bob", "b": "Ada"}
    assert named(ada, (2, "delete", "a", None, None)) == {}
    assert named(ada, (2, "delete", "a", None, None), (3, "undelete", "a", None, None)) == {"a": "Ada"}


@pytest.mark.parametrize("wrong", [{"activities": 0}, {"skew": -1.0}, {"new_contacts": 0.0}, {"late_max_hours": 0.0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="GENERATOR_SETTING_INVALID"):
        EngagementSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a rate lies between 0 and 1"):
        EngagementRates(late_activities=1.5)


def test_the_command_writes_files_and_names_other_targets(tmp_path: Path) -> None:
    command = CliRunner()

    done = command.invoke(app, ["generate", "engagement", "--activities", "300", "--directory", str(tmp_path)])

    assert done.exit_code == 0, done.output
    assert "activities of" in done.output
    assert 290 <= EngagementTruth.read(tmp_path).activities <= 310
    for nowhere in (["generate"], ["generate", "engagement"]):
        refused = command.invoke(app, nowhere)
        assert isinstance(refused.exception, ConfigError)
        assert refused.exception.condition == "GENERATE_DESTINATION_MISSING"


def test_the_truth_of_a_redacting_pipeline_has_tokens() -> None:
    truth = generate_engagement(EngagementSettings(activities=60, organisations=2, days=2, seed=3), lambda *_: None)

    tokens = truth.tokenized(lambda kind, value: f"{kind}:{value}")

    assert tokens.counts() == truth.counts()
    assert tokens.rows.column("contact_id").to_pylist() == [
        f"contact:{value}" for value in truth.rows.column("contact_id").to_pylist()
    ]
    assert tokens.rows.column("template_id") == truth.rows.column("template_id")
    assert [row["name"] for row in tokens.names.to_pylist()] == [
        f"name:{row['name']}" for row in truth.names.to_pylist()
    ]
    assert all(row["id"].startswith("contact:") for row in tokens.names.to_pylist())
