"""Entities after an organisation's requests: names of their ids, and alerts on those that are too large."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pytest

from deltaworks.alerts.raising import open_subjects, read_alert
from deltaworks.mutations.batch_frames import ALL_ORGANISATIONS, OrganisationScope
from deltaworks.mutations.entity_sizes import ENTITY_TOO_LARGE, MAX_ALERTS, LargestEntity, update_alerts
from deltaworks.mutations.state_tables import IdMapping, NameRequest
from deltaworks.testing import present
from tests.spark.mutations.mutation_harness import MutationHarness, declared


@pytest.fixture
def stage(tmp_path: Path) -> MutationHarness:
    return MutationHarness(tmp_path, declared(alert_above_ids=3))


def entity(organisation: str, ids: int = 4) -> LargestEntity:
    return LargestEntity(organisation, "default", ids, "a")


def test_an_alert_names_the_organisation_the_id_and_an_example_and_is_resolved(stage: MutationHarness) -> None:
    update_alerts(stage.objects, stage.spec, [entity("acme", 1_234), entity("bolt")], resolved=())

    alert = present(read_alert(stage.objects, cause=ENTITY_TOO_LARGE, subject="crm.requests/acme"))
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


START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def request(time: int, op: str, each_id: str, to: str | None = None, *, seq: int | None = 0) -> NameRequest:
    return NameRequest(op, each_id, to, None, START + dt.timedelta(seconds=time), seq)


def named(time: int, each_id: str, name: str, *, seq: int | None = 0) -> NameRequest:
    return NameRequest("rename_name", each_id, None, name, START + dt.timedelta(seconds=time), seq)


def names(*requests: NameRequest, rule: str = "keep_target") -> dict[str, str]:
    shuffled = list(requests)
    random.Random(1).shuffle(shuffled)
    return {each_id: given.name for each_id, given in IdMapping(rule).replay(shuffled).items()}


def test_a_name_follows_its_entity_through_a_cascade() -> None:
    assert names(named(1, "a", "Ada"), request(2, "rename", "a", "b"), request(3, "rename", "b", "c")) == {"c": "Ada"}


def test_a_late_name_of_a_former_id_follows_its_entity() -> None:
    assert names(request(5, "rename", "a", "b"), named(3, "a", "Ada")) == {"b": "Ada"}


def test_the_later_name_wins_and_at_one_time_the_greater_sequence() -> None:
    assert names(named(2, "a", "new"), named(1, "a", "old")) == {"a": "new"}
    assert names(named(1, "a", "first", seq=None), named(1, "a", "third", seq=3), named(1, "a", "second", seq=2)) == {
        "a": "third"
    }


def test_a_name_and_a_rename_of_one_time_both_act_on_what_was_there_before() -> None:
    assert names(named(1, "a", "Ada"), named(2, "a", "Eve"), request(2, "rename", "a", "b")) == {"b": "Eve"}


def test_a_swap_swaps_names() -> None:
    swap = (request(2, "rename", "a", "b"), request(2, "rename", "b", "a"))
    assert names(named(1, "a", "Ada"), named(1, "b", "Bo"), *swap) == {"a": "Bo", "b": "Ada"}


@pytest.mark.parametrize(("rule", "left"), [("keep_target", "target"), ("keep_source", "source"), ("newest", "source")])
def test_the_rule_says_which_name_two_merged_ids_have(rule: str, left: str) -> None:
    requests = (named(1, "b", "target"), named(2, "a", "source"), request(3, "merge", "a", "b"))
    assert names(*requests, rule=rule) == {"b": left}


def test_an_id_without_a_name_takes_the_name_of_the_merged_id() -> None:
    assert names(named(1, "a", "Ada"), request(2, "merge", "a", "b")) == {"b": "Ada"}


def test_deleted_ids_have_no_name_until_they_come_back_and_a_new_entity_has_its_own() -> None:
    gone = (named(1, "a", "Ada"), request(2, "delete", "a"))
    assert names(*gone) == {}
    assert names(*gone, named(3, "a", "Eve")) == {"a": "Eve"}
    assert names(*gone, request(4, "undelete", "a")) == {"a": "Ada"}


def test_a_self_rename_leaves_a_name_in_place_and_outranks_another_move_of_its_time() -> None:
    base = (named(1, "a", "Ada"), named(1, "b", "Bo"))
    assert names(*base, request(2, "rename", "a", "a", seq=2), request(2, "rename", "a", "c", seq=1)) == {
        "a": "Ada",
        "b": "Bo",
    }
    # What stays where it is counts as being there already when another comes.
    assert names(*base, request(2, "rename", "a", "a"), request(2, "merge", "b", "a")) == {"a": "Ada"}


def test_copies_of_requests_change_nothing() -> None:
    requests = (named(1, "a", "Ada"), request(2, "rename", "a", "b"), named(3, "b", "Eve"))
    assert names(*requests, *requests) == names(*requests) == {"b": "Eve"}
