"""Reveals are recorded before a value is decrypted, and decrypt only the approved values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import PERSON_VARIABLE, system_user
from deltaworks.control.records.approval import Approval, NamespaceApprovals
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.operations.base import OperationContext
from deltaworks.operations.privacy import RevealOptions, reveal
from deltaworks.operations.registry import get_operation
from deltaworks.privacy.tokens.envelope_encryption import Identity
from deltaworks.privacy.vault import reveal as revealing
from deltaworks.privacy.vault import tables
from deltaworks.privacy.vault.job import run_ingest
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.privacy.vault.tables import CellAddress
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.tables.lake import Lake
from tests.unit.privacy.vault.vault_harness import NAMESPACE, email_of, subject_of

Seal = Callable[[str, Sequence[Identity]], str]


@pytest.fixture
def ada(environment: EnvironmentSpec, seal: Seal) -> str:
    seal("1-2", [email_of("ada"), email_of("bob")])
    run_ingest(environment, NAMESPACE, dry_run=False)
    return subject_of("ada")


def context_of(environment: EnvironmentSpec, **more: Any) -> OperationContext:
    catalog = Catalog(environment=environment, relays={}, pipelines={}, root=PROJECT_ROOT)
    return OperationContext(operation=get_operation("reveal"), catalog=catalog, subject=NAMESPACE, **more)


def recorded(home: NamespaceVault) -> list[dict[str, Any]]:
    return revealing.read_reveals(Lake(home.storage), NAMESPACE)


def test_a_reveal_is_on_record_and_gives_the_values_of_its_subject_alone(
    environment: EnvironmentSpec, ada: str
) -> None:
    report = reveal(context_of(environment), RevealOptions(subjects=ada, kind=("email",), reason="ticket 4711"))

    (value,) = report.results
    assert isinstance(value, revealing.RevealedValue)
    assert (value.subject, value.value, value.problem) == (ada, "ada@example.org", "")
    (row,) = recorded(NamespaceVault.open(environment, NAMESPACE))
    assert (row["subject"], row["kinds"], row["reason"]) == (ada, ["email"], "ticket 4711")


def test_a_reveal_that_cannot_be_put_on_record_opens_nothing(
    home: NamespaceVault, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[CellAddress] = []
    monkeypatch.setattr(revealing, "open_cell", lambda cell, key, place: opened.append(place))

    def refused(*_: Any, **__: Any) -> None:
        raise ConcurrencyError("COMMIT_CONTENDED", "others write")

    monkeypatch.setattr(Lake, "append", refused)

    with pytest.raises(ConcurrencyError):
        revealing.reveal(home, [ada], [], reason="ticket", by="eve")

    assert opened == []


def swap_cells(home: NamespaceVault) -> None:
    """Put bob's cell and key version where ada's are, as somebody could who writes the table."""
    rows = home.tables.identities(subjects=[subject_of("ada"), subject_of("bob")])
    of = {row["subject"]: row for row in rows.to_pylist()}
    ada, bob = of[subject_of("ada")], of[subject_of("bob")]
    # Under one key, so that nothing but the associated data tells the rows apart.
    key = home.keys.get([bob["subject"]])[bob["subject"]]
    place = CellAddress(NAMESPACE, bob["subject"], bob["kind"], bob["token"])
    other = tables.seal_cell("swapped", home.keys.get([ada["subject"]])[ada["subject"]], place)
    assert tables.open_cell(bob["value"], key, place) == "bob@example.org"
    ada |= {"value": other, "key_version": -1}
    home.tables.merge_identities(pa.Table.from_pylist([ada], schema=rows.schema))


def test_a_cell_of_another_row_does_not_open_and_stops_no_other(environment: EnvironmentSpec, ada: str) -> None:
    home = NamespaceVault.open(environment, NAMESPACE)
    swap_cells(home)

    values = revealing.reveal(home, [ada, subject_of("bob")], [], reason="ticket", by="eve")

    assert {(value.value, value.problem) for value in values} == {
        ("", "VAULT_CELL_UNREADABLE"),
        ("bob@example.org", ""),
    }


def test_without_associated_data_a_swapped_cell_would_open(
    environment: EnvironmentSpec, seal: Seal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CellAddress, "associated_data", property(lambda _: b""))
    seal("1-2", [email_of("ada"), email_of("bob")])
    run_ingest(environment, NAMESPACE, dry_run=False)
    home = NamespaceVault.open(environment, NAMESPACE)
    swap_cells(home)

    values = revealing.reveal(home, [subject_of("ada")], [], reason="ticket", by="eve")

    assert [(value.value, value.problem) for value in values] == [("swapped", "")]


def test_of_a_subject_that_was_shredded_nothing_opens(environment: EnvironmentSpec, ada: str) -> None:
    home = NamespaceVault.open(environment, NAMESPACE)
    home.keys.shred([ada])

    (value,) = revealing.reveal(home, [ada], [], reason="ticket", by="eve")

    assert (value.value, value.problem) == ("", "VAULT_SHREDDED")


@pytest.mark.parametrize(
    ("subjects", "reason", "run"),
    [
        ("", "ticket", ""),
        ("ada", "ticket", ""),
        (subject_of("ada"), " ", ""),
        (subject_of("ada"), "ticket", "r"),
    ],
)
def test_without_tokens_or_a_reason_or_within_airflow_nothing_is_opened(
    subjects: str, reason: str, run: str, environment: EnvironmentSpec
) -> None:
    with pytest.raises(ConfigError, match="REVEAL_REFUSED"):
        reveal(context_of(environment, run_id=run), RevealOptions(subjects=subjects, reason=reason))

    assert recorded(NamespaceVault.open(environment, NAMESPACE)) == []


def test_within_airflow_it_says_what_is_asked_for_and_does_not_touch_the_vault(environment: EnvironmentSpec) -> None:
    without_vault = environment.model_copy(update={"privacy": None})
    options = RevealOptions(subjects=subject_of("ada"), kind=("email",), reason="ticket", dry_run=True)

    (request,) = reveal(context_of(without_vault, run_id="manual__1"), options).results

    assert (getattr(request, "subjects", 0), getattr(request, "kinds", "")) == (1, "email")


def test_more_than_ten_subjects_need_an_approval_of_just_these_options(environment: EnvironmentSpec, ada: str) -> None:
    subjects = ",".join((ada, *(subject_of(f"player {number}") for number in range(10))))
    options = RevealOptions(subjects=subjects, reason="ticket")
    context = context_of(environment)
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        reveal(context, options)
    approvals = NamespaceApprovals(open_objects(environment.lake), NAMESPACE)
    question = Approval(
        operation="reveal",
        subject=NAMESPACE,
        run="manual__1",
        requested_by="eve",
        requested_at="2026-11-20T00:00:00+00:00",
        run_started_at="2026-11-20T00:00:00+00:00",
        try_number=1,
        answer_by=(utc_now() + timedelta(hours=10)).isoformat(),
        question_text="",
        options=options.model_dump(mode="json", exclude={"dry_run"}),
        bounds={},
    )
    approvals.record_question(question)
    approvals.record_answer("reveal", "manual__1", approver_id="2", approved_by="dan", at=utc_now())

    with pytest.raises(ContractError, match="APPROVAL_REFUSED"):
        reveal(context, options.model_copy(update={"reason": "another", "approval": "manual__1"}))
    assert recorded(NamespaceVault.open(environment, NAMESPACE)) == []
    report = reveal(context, options.model_copy(update={"approval": "manual__1"}))
    with pytest.raises(ContractError, match="APPROVAL_EXPIRED"):
        reveal(context, options.model_copy(update={"approval": "manual__1"}))

    assert len(report.results) == 1
    assert len(recorded(NamespaceVault.open(environment, NAMESPACE))) == 11


def reveal_each(environment: EnvironmentSpec, subjects: Sequence[str]) -> None:
    for subject in subjects:
        reveal(context_of(environment), RevealOptions(subjects=subject, reason="ticket"))


def test_ten_subjects_a_day_and_not_a_call(environment: EnvironmentSpec, ada: str) -> None:
    others = [subject_of(f"player {number}") for number in range(10)]
    reveal_each(environment, others[:10])

    reveal_each(environment, [others[0], others[9]])
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        reveal_each(environment, [ada])
    assert len(recorded(NamespaceVault.open(environment, NAMESPACE))) == 12


def test_days_and_people_are_counted_apart_and_namespaces_together(
    environment: EnvironmentSpec, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reveal_each(environment, [subject_of(f"player {number}") for number in range(10)])
    other = NamespaceVault.open(environment, "readers")
    me = system_user()

    assert revealing.needs_approval(other, me, [ada])
    assert not revealing.needs_approval(other, "another", [ada])
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    monkeypatch.setattr(revealing, "utc_now", lambda: tomorrow)
    assert not revealing.needs_approval(other, me, [ada])


def test_a_name_in_the_environment_does_not_give_another_ten(
    environment: EnvironmentSpec, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reveal_each(environment, [subject_of(f"player {number}") for number in range(10)])

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER", PERSON_VARIABLE):
        monkeypatch.setenv(variable, "another")
        with pytest.raises(ContractError, match="APPROVAL_MISSING"):
            reveal_each(environment, [ada])
    assert {row["by"] for row in recorded(NamespaceVault.open(environment, NAMESPACE))} == {system_user()}


def test_reveals_at_the_same_time_are_counted_together(
    home: NamespaceVault, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of the same person commits between the check and the record of this one."""
    append, others = Lake.append, [subject_of(f"player {number}") for number in range(10)]

    def after_others(self: Lake, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Lake, "append", append)
        revealing.reveal(home, others, [], reason="ticket", by="eve")
        return append(self, *args, **options)

    monkeypatch.setattr(Lake, "append", after_others)

    with pytest.raises(ConfigError, match="REVEAL_LIMIT_REACHED"):
        revealing.reveal(home, [ada], [], reason="ticket", by="eve")


def test_an_approved_reveal_does_not_count(home: NamespaceVault, ada: str) -> None:
    others = [subject_of(f"player {number}") for number in range(20)]
    revealing.reveal(home, others, [], reason="ticket", by="eve", approval="manual__1")

    (value,) = revealing.reveal(home, [ada], [], reason="ticket", by="eve")

    assert value.value == "ada@example.org"


def test_what_only_counts_needs_no_key_and_is_not_on_record(environment: EnvironmentSpec, ada: str) -> None:
    report = reveal(context_of(environment), RevealOptions(subjects=ada, reason="ticket", dry_run=True))

    (count,) = report.results
    assert (getattr(count, "values", None), getattr(count, "kinds", None)) == (1, "email")
    assert recorded(NamespaceVault.open(environment, NAMESPACE)) == []
