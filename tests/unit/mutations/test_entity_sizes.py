"""Alerts on entities that are too large, by organisation."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.alerts.raising import open_subjects, read_alert
from deltaworks.mutations.batch_frames import ALL_ORGANISATIONS, OrganisationScope
from deltaworks.mutations.entity_sizes import ENTITY_TOO_LARGE, MAX_ALERTS, LargestEntity, update_alerts
from tests.spark.mutations.mutation_harness import MutationHarness, declared


@pytest.fixture
def stage(tmp_path: Path) -> MutationHarness:
    return MutationHarness(tmp_path, declared(alert_above_ids=3))


def entity(organisation: str, ids: int = 4) -> LargestEntity:
    return LargestEntity(organisation, "default", ids, "a")


def test_an_alert_names_the_organisation_the_id_and_an_example_and_is_resolved(stage: MutationHarness) -> None:
    update_alerts(stage.objects, stage.spec, [entity("acme", 1_234), entity("bolt")], resolved=())

    alert = read_alert(stage.objects, cause=ENTITY_TOO_LARGE, subject="crm.requests/acme")
    assert alert is not None
    assert alert.summary == (
        "crm.requests/acme: requests joined 1,234 ids into 'default', for example 'a'; more than 3 are usually a wrong "
        "request."
    )
    assert alert.detail == {
        "organisation": "acme",
        "tables": ["activities"],
        "final_id": "default",
        "ids": 1_234,
        "example_id": "a",
    }

    update_alerts(stage.objects, stage.spec, [], resolved=("acme", "never raised"))
    assert open_subjects(stage.objects, ENTITY_TOO_LARGE) == {"crm.requests/bolt"}


def test_only_the_largest_entities_raise_alerts(stage: MutationHarness) -> None:
    update_alerts(stage.objects, stage.spec, [entity(f"o{number}") for number in range(MAX_ALERTS + 5)], resolved=())

    assert open_subjects(stage.objects, ENTITY_TOO_LARGE) == {f"crm.requests/o{number}" for number in range(MAX_ALERTS)}


def test_a_scope_knows_its_organisations() -> None:
    assert OrganisationScope(("acme", "bolt")).intersection({"bolt", "core"}) == {"bolt"}
    assert OrganisationScope(()).intersection({"acme"}) == set()
    assert ALL_ORGANISATIONS.intersection({"acme"}) == {"acme"}
