"""Compares the engagement pipeline's answers with a replay of all requests in order of their times."""

from __future__ import annotations

from collections import Counter
from typing import Any

from generator.engagement_truth import EngagementTruth
from sandbox.demo.answers import AnswerSheet

_TOP_ROWS = 20
_ROW = ("org_id", "event_id", "origin_contact_id", "contact_id", "template_id")


def answer_engagement(sheet: AnswerSheet, truth: EngagementTruth) -> None:
    """Compares the engagement pipeline's tables with the truth. Call it after all change requests are applied."""
    rows = truth.rows.to_pylist()
    alive = [row for row in rows if not row["deleted"]]
    names = {(row["org_id"], row["id"]): row["name"] for row in truth.names.to_pylist()}
    requests = dict(sheet.fetch_rows("SELECT op, count(*) FROM engagement.requests GROUP BY 1"))
    sheet.check_rows("engagement", "requests by kind", requests, truth.requests_by_op)
    there = Counter(sheet.fetch_rows(f"SELECT {', '.join(_ROW)} FROM engagement.activities"))
    ended = Counter({tuple(row[name] for name in _ROW): row["copies"] for row in alive if row["copies"]})
    sheet.check_rows("engagement", "activities after renames, merges, updates", dict(there), dict(ended))
    moved = sum(row["copies"] for row in alive if row["contact_id"] != row["origin_contact_id"])
    of_others = "SELECT count(*) FROM engagement.activities WHERE contact_id <> origin_contact_id"
    sheet.check_equal("engagement", "activities under another id than they came", sheet.fetch_one(of_others), moved)
    deleted = truth.activities - sum(row["copies"] for row in alive)
    sheet.check_equal("engagement", "activities deleted", truth.activities - there.total(), deleted)
    quarantined = (
        sheet.fetch_one("SELECT count(*) FROM engagement.quarantine") if sheet.has_table("engagement.quarantine") else 0
    )
    sheet.check_equal("engagement", "quarantined rows", quarantined, truth.malformed)
    # Gold counts an activity once, regardless of duplicate deliveries.
    per_org = dict(
        sheet.fetch_rows("SELECT org_id, sum(activities)::BIGINT FROM engagement.activities_per_day GROUP BY 1")
    )
    sheet.check_rows("engagement", "activities per organisation", per_org, Counter(row["org_id"] for row in alive))
    top = {
        (org_id, place): rest
        for org_id, place, *rest in sheet.fetch_rows(
            "SELECT org_id, place, contact_id, contact_name, activities FROM engagement.top_contacts"
        )
    }
    sheet.check_rows("engagement", "busiest contacts, by their names", top, _busiest_contacts(alive, names))


def _busiest_contacts(
    alive: list[dict[str, Any]], names: dict[tuple[str, str], str]
) -> dict[tuple[str, int], list[Any]]:
    """Returns the twenty contacts with the most activities in each organisation: id, name, number of activities."""
    per_org: dict[str, Counter[str]] = {}
    for row in alive:
        per_org.setdefault(row["org_id"], Counter())[row["contact_id"]] += 1
    return {
        (org_id, place): [contact, names.get((org_id, contact), contact), activities]
        for org_id, contacts in per_org.items()
        for place, (contact, activities) in enumerate(
            sorted(contacts.items(), key=lambda item: (-item[1], item[0]))[:_TOP_ROWS], start=1
        )
    }
