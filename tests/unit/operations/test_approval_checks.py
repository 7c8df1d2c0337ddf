"""An approval limits a job: approver, request, amount, and single use."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths, provenance
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.approval import Approval, Approvals
from deltaworks.errors import ContractError
from deltaworks.operations import job
from deltaworks.operations.approval_checks import approved_options, counted_bounds, requested_options
from deltaworks.operations.base import Operation, OperationContext, Report
from deltaworks.operations.maintenance import VacuumOptions
from deltaworks.operations.options import read_options
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import ApprovalsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import catalog_of

VACUUM = get_operation("vacuum_tables")
RUN = "manual__2026-01-01T00:00:00+00:00"
FORM = {"retention_hours": 48, "allow_below_minimum": "the disk is full", "tables": "orders"}
REFUSALS = "APPROVAL_(MISSING|REFUSED|OVER)"


def asked_question(**values: Any) -> Approval:
    """Returns ada's question of a run, which waits for an answer."""
    question = Approval(
        operation="vacuum_tables",
        subject="shop",
        run=RUN,
        requested_by="ada",
        requested_at=iso_now(),
        run_started_at="2026-01-01T00:00:01+00:00",
        try_number=1,
        answer_by=(utc_now() + dt.timedelta(hours=10)).isoformat(),
        question_text="orders  7",
        options={},
        bounds={},
    )
    return question.replace(**values)


@dataclass
class ApprovalHarness:
    """A pipeline in an environment, with the requests and approvals of its operations."""

    catalog: Catalog

    @property
    def home(self) -> PipelineHome:
        return PipelineHome.open(self.catalog.environment.lake, "shop")

    def declare(self, *, approvers: list[Any] | None = None, self_approval: bool = False, own: Any = ()) -> None:
        spec = ApprovalsSpec.model_validate({"approvers": approvers or [], "self_approval": self_approval})
        environment = self.catalog.environment.model_copy(update={"approvals": spec})
        shop = self.catalog.pipelines["shop"]
        shop = PipelineSpec.model_validate(shop.model_dump() | {"approvers": own})
        self.catalog = Catalog(environment, {}, {"shop": shop}, Path())

    def ask(self, *, files: int = 7, **values: Any) -> None:
        options = read_options(VacuumOptions, FORM)
        bounds = counted_bounds(VACUUM, options, [{"table": "orders", "files": files}])
        question = asked_question(bounds=bounds, options=requested_options(VACUUM, options))
        self.home.approvals.record_question(question.replace(**values))

    def approve(self, by: str = "bo", person_id: str = "", *, at: dt.datetime | None = None) -> Approval:
        return self.home.approvals.record_answer(
            "vacuum_tables", RUN, approver_id=person_id or by, approved_by=by, at=at or utc_now()
        )

    def options(self, *, triggered_by: str = "ada", **form: Any) -> VacuumOptions:
        given_options = read_options(VacuumOptions, {**FORM, **form, "dry_run": False})
        bounded, _ = approved_options(VACUUM, self.catalog, "shop", given_options, run=RUN, person=triggered_by)
        assert isinstance(bounded, VacuumOptions)
        return bounded


@pytest.fixture
def harness(make_spec: Callable[..., PipelineSpec], tmp_path: Any) -> ApprovalHarness:
    return ApprovalHarness(catalog_of(tmp_path, make_spec()))


def test_an_approved_operation_stays_within_the_approved_counts(harness: ApprovalHarness) -> None:
    harness.ask()
    harness.approve()

    assert harness.options().max_files == 7
    assert harness.options(max_files=3).max_files == 3
    assert harness.options(max_files=9).max_files == 7


def test_without_an_answer_nothing_runs_whatever_the_task_state(harness: ApprovalHarness) -> None:
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        harness.options()
    harness.ask()
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        harness.options()


def test_self_approval_is_rejected_unless_declared(harness: ApprovalHarness) -> None:
    harness.ask(requested_by="ada")
    harness.approve("ada")

    with pytest.raises(ContractError, match="ada requested it, and self-approval is not allowed"):
        harness.options()
    harness.declare(self_approval=True)
    assert harness.options().max_files == 7


def test_a_requester_cannot_approve_under_their_id(harness: ApprovalHarness) -> None:
    harness.ask(requested_by="ada")
    harness.approve("Ada Lovelace", person_id="ada")

    with pytest.raises(ContractError, match="APPROVAL_REFUSED"):
        harness.options()


def test_without_a_known_requester_no_approval_is_valid(harness: ApprovalHarness) -> None:
    harness.ask(requested_by="")
    harness.approve("bo")

    with pytest.raises(ContractError, match="the requester is unknown"):
        harness.options()


@pytest.mark.parametrize("declared", [["bo"], [{"id": "17", "name": "bo"}]])
def test_only_declared_approvers_may_approve(harness: ApprovalHarness, declared: list[Any]) -> None:
    harness.declare(approvers=declared)
    harness.ask()
    harness.approve("cy")

    with pytest.raises(ContractError, match=r"cy is not one of the approvers \(bo\)"):
        harness.options()


@pytest.mark.parametrize("declared", [["bo"], [{"id": "17", "name": "bo"}]])
def test_a_declared_approver_may_approve(harness: ApprovalHarness, declared: list[Any]) -> None:
    harness.declare(approvers=declared)
    harness.ask()
    harness.approve("bo", person_id="17" if isinstance(declared[0], dict) else "bo")

    assert harness.options().max_files == 7


def test_approvers_of_a_pipeline_replace_those_of_the_environment(harness: ApprovalHarness) -> None:
    harness.declare(approvers=["bo"], own=["cy"])
    harness.ask()
    harness.approve("bo")

    with pytest.raises(ContractError, match=r"bo is not one of the approvers \(cy\)"):
        harness.options()


@pytest.mark.parametrize("changed", [{"tables": "clicks"}, {"retention_hours": 24}, {"mode": "full"}])
def test_an_approval_is_valid_only_for_its_options(harness: ApprovalHarness, changed: dict[str, Any]) -> None:
    harness.ask()
    harness.approve()

    with pytest.raises(ContractError, match="other options"):
        harness.options(**changed)


REPEATED = "APPROVAL_REPEATED"


def use(harness: ApprovalHarness) -> None:
    harness.home.approvals.mark_used(harness.approve())


def reject(harness: ApprovalHarness) -> None:
    harness.home.approvals.record_rejection("vacuum_tables", RUN, at=utc_now())


def time_out(harness: ApprovalHarness) -> None:
    harness.home.approvals.record_question(
        asked_question(
            options=requested_options(VACUUM, read_options(VacuumOptions, FORM)), try_number=2, answer_by=PAST
        )
    )


PAST = "2026-01-01T10:00:00+00:00"
ENDS = pytest.mark.parametrize("end", [use, ApprovalHarness.approve, reject, time_out])


@ENDS
@pytest.mark.parametrize("again", [{}, {"try_number": 9}, {"requested_by": "cy", "try_number": 9}])
def test_a_question_that_has_ended_is_not_asked_a_second_time(
    harness: ApprovalHarness, end: Callable[[ApprovalHarness], Any], again: dict[str, Any]
) -> None:
    harness.ask()
    end(harness)
    before = harness.home.approvals._read("vacuum_tables", RUN)

    with pytest.raises(ContractError, match=rf"{REPEATED}.*its question was (used|answered|rejected|not answered)"):
        harness.ask(**again)

    assert harness.home.approvals._read("vacuum_tables", RUN) == before


@ENDS
def test_a_question_is_answered_once(harness: ApprovalHarness, end: Callable[[ApprovalHarness], Any]) -> None:
    harness.ask()
    end(harness)

    with pytest.raises(ContractError, match=REPEATED):
        harness.approve("cy")
    with pytest.raises(ContractError, match=REPEATED):
        reject(harness)


def test_a_rejection_is_no_approval_whoever_answers_later(harness: ApprovalHarness) -> None:
    harness.ask()
    reject(harness)

    with pytest.raises(ContractError, match=REPEATED):
        harness.approve("bo")
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        harness.options()


def test_an_answer_counts_from_when_it_was_given(harness: ApprovalHarness) -> None:
    """The task may read it later than the person answered, as while the scheduler is down."""
    now = utc_now()
    harness.ask(answer_by=(now - dt.timedelta(minutes=1)).isoformat())

    with pytest.raises(ContractError, match=f"{REPEATED}.*was not answered by"):
        harness.approve(at=now)
    harness.approve(at=now - dt.timedelta(minutes=2))
    assert harness.options().max_files == 7


def test_a_retried_task_asks_again_until_it_is_answered(harness: ApprovalHarness) -> None:
    harness.ask()
    harness.ask(try_number=2, files=5)
    harness.ask(try_number=3, files=4)

    harness.approve()

    assert harness.options().max_files == 4


@pytest.mark.parametrize(
    "other",
    [
        {"try_number": 1, "requested_at": "2026-01-02T00:00:00+00:00"},
        {"try_number": 2, "run_started_at": "2026-01-02T00:00:00+00:00"},
        {"try_number": 2, "requested_by": "cy"},
        {"try_number": 2, "requested_by": ""},
        {"try_number": 2, "options": {"retention_hours": 0}},
        {"try_number": 2, "subject": "clicks"},
    ],
    ids=["same try", "other start", "other requester", "unknown requester", "other options", "other subject"],
)
def test_only_a_retry_of_the_same_request_asks_again(harness: ApprovalHarness, other: dict[str, Any]) -> None:
    harness.ask()

    with pytest.raises(ContractError, match=f"{REPEATED}.*its question was asked at"):
        harness.ask(**other)

    harness.approve()
    assert harness.options().max_files == 7, "the first question still waits for its answer"


@pytest.mark.parametrize("thief", ["cy", "bo", "airflow", ""])
def test_an_approval_is_valid_only_in_a_run_of_its_requester(harness: ApprovalHarness, thief: str) -> None:
    """A run can be deleted, and another one be triggered under its id."""
    harness.ask()
    harness.approve()

    with pytest.raises(ContractError, match=r"APPROVAL_REFUSED.*ada requested it"):
        harness.options(triggered_by=thief)


@pytest.mark.parametrize("name", ["ADA", "Ada", " ada "])
def test_a_requester_cannot_approve_in_another_case(harness: ApprovalHarness, name: str) -> None:
    harness.ask()
    harness.approve(name)

    with pytest.raises(ContractError, match="APPROVAL_REFUSED"):
        harness.options()


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ask", "approve", "reject", "use"]),
            st.sampled_from(["ada", "bo"]),
            st.integers(1, 4),
            st.sampled_from(["first", "second"]),
        ),
        max_size=12,
    )
)
def test_no_sequence_of_events_gives_a_second_answer(steps: list[tuple[str, str, int, str]]) -> None:
    """Whatever happens to a run, its approval stays the first one, and an end is final."""
    with tempfile.TemporaryDirectory() as folder:
        approvals = Approvals(LocalObjects(Path(folder)), "shop")
        requester, ended, approved_by = "", False, ""
        for event, person, number, start in steps:
            try:
                if event == "ask":
                    approvals.record_question(
                        asked_question(requested_by=person, try_number=number, run_started_at=start)
                    )
                    assert not ended
                    assert requester in ("", person)
                    requester = person
                elif event == "approve":
                    approvals.record_answer("vacuum_tables", RUN, approver_id=person, approved_by=person, at=utc_now())
                    assert requester
                    assert not ended
                    ended, approved_by = True, person
                elif event == "reject":
                    approvals.record_rejection("vacuum_tables", RUN, at=utc_now())
                    assert requester
                    assert not ended
                    ended = True
                else:
                    found = approvals.valid_approval("vacuum_tables", RUN)
                    assert (found.requested_by, found.approved_by) == (requester, approved_by)
                    approvals.mark_used(found)
                    approved_by = ""
            except ContractError:
                pass


def test_an_approval_expires_after_a_day(harness: ApprovalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaworks.control.records import approval

    harness.ask()
    harness.approve()
    monkeypatch.setattr(approval, "utc_now", lambda: utc_now() + dt.timedelta(hours=25))

    with pytest.raises(ContractError, match="APPROVAL_EXPIRED"):
        harness.options()


@pytest.mark.parametrize("other", ["restore", "start_over"])
def test_an_approval_is_valid_for_one_operation(harness: ApprovalHarness, other: str) -> None:
    harness.ask()
    harness.approve()

    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        harness.home.approvals.valid_approval(other, RUN)


def fake_vacuum(context: OperationContext, options: VacuumOptions) -> Report:
    """A fake VACUUM that reports its limit."""
    return Report(parts=[f"at most {options.max_files}, dry run {options.dry_run}"])


@pytest.mark.parametrize("under_airflow", [True, False])
def test_the_job_checks_the_approval_in_airflow(
    harness: ApprovalHarness, monkeypatch: pytest.MonkeyPatch, under_airflow: bool
) -> None:
    if under_airflow:
        monkeypatch.setenv(provenance.RUN_VARIABLE, f"shop__maintenance/{RUN}/vacuum_tables/1")
        monkeypatch.setenv(provenance.PERSON_VARIABLE, "ada")
    monkeypatch.setattr(Operation, "load", lambda self: fake_vacuum)

    def run(**values: Any) -> Any:
        return job.run_operation(VACUUM, harness.catalog, "shop", FORM | values, echo=lambda _: None).parts[0]

    assert run(dry_run=True) == "at most None, dry run True"
    if not under_airflow:
        assert run(dry_run=False) == "at most None, dry run False"
        return
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        run(dry_run=False)
    harness.ask()
    harness.approve()
    assert run(dry_run=False) == "at most 7, dry run False"
    with pytest.raises(ContractError, match="was used at"):
        run(dry_run=False)


def test_nightly_maintenance_needs_no_approval_and_has_limits(
    harness: ApprovalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reports(context: OperationContext, options: VacuumOptions) -> Report:
        return Report(parts=[f"nightly {context.nightly}"])

    monkeypatch.setattr(Operation, "load", lambda self: reports)
    monkeypatch.setattr(Operation, "options_model", lambda self: VacuumOptions)

    def run(run: str, **values: Any) -> Any:
        monkeypatch.setenv(provenance.RUN_VARIABLE, run)
        values = {"dry_run": False, **values}
        return job.run_operation(VACUUM, harness.catalog, "shop", values, echo=lambda _: None).parts[0]

    night = f"shop__maintenance/{RUN}/vacuum_tables/1"
    monkeypatch.setenv(provenance.UNATTENDED_VARIABLE, "True")
    assert run(night) == run(night, tables="orders") == "nightly True"
    for other in (f"shop__restore/{RUN}/vacuum_tables/1", f"other__maintenance/{RUN}/vacuum_tables/1"):
        with pytest.raises(ContractError, match="APPROVAL_MISSING"):
            run(other)
    monkeypatch.setenv(provenance.UNATTENDED_VARIABLE, "False")
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        run(night)
    monkeypatch.setenv(provenance.UNATTENDED_VARIABLE, "True")
    with pytest.raises(ContractError, match="APPROVAL_MISSING"):
        run(night, retention_hours=24, allow_below_minimum="the disk is full")
    assert run("manual") == "nightly False", "nobody is asked on the command line"


@pytest.mark.parametrize("night", [True, False])
def test_nightly_limits_apply_only_to_nightly_maintenance(harness: ApprovalHarness, night: bool) -> None:
    from deltaworks.operations.maintenance import apply_nightly_limits

    said: list[str] = []
    harness.home.objects.put(paths.first_maintenance("shop"), b"torn, so that it is the first night")
    context = OperationContext(
        operation=VACUUM, catalog=harness.catalog, subject="shop", nightly=night, echo=said.append
    )

    dry_run, bound = apply_nightly_limits(context, dry_run=False)

    assert (dry_run, bound is not None and bound.share) == ((True, 0.75) if night else (False, False))
    assert ["first night" in line for line in said] == ([True] if night else [])


def test_every_deleting_nightly_operation_has_limits() -> None:
    nightly = {name for name, declared in OPERATIONS.items() if declared.unattended}

    assert nightly == {
        "vacuum_tables",
        "remove_orphans",
        "compact_control_tables",
        "expire_quarantine",
        "purge_deleted",
    }
    assert all(get_operation(name).destructive for name in nightly)


def test_a_failed_try_reuses_its_approval(harness: ApprovalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(provenance.RUN_VARIABLE, f"shop__maintenance/{RUN}/vacuum_tables/1")
    monkeypatch.setenv(provenance.PERSON_VARIABLE, "ada")
    tries: list[int | None] = []

    def failing_once(context: OperationContext, options: VacuumOptions) -> Report:
        tries.append(options.max_files)
        if len(tries) == 1:
            raise OSError("the storage is away")
        return Report()

    monkeypatch.setattr(Operation, "load", lambda self: failing_once)
    monkeypatch.setattr(Operation, "options_model", lambda self: VacuumOptions)
    harness.ask()
    harness.approve()
    with pytest.raises(OSError, match="away"):
        job.run_operation(VACUUM, harness.catalog, "shop", FORM | {"dry_run": False}, echo=lambda _: None)

    job.run_operation(VACUUM, harness.catalog, "shop", FORM | {"dry_run": False}, echo=lambda _: None)

    assert tries == [7, 7]


@given(
    counted=st.lists(st.integers(0, 100), max_size=4),
    asked=st.none() | st.integers(0, 200),
    later=st.none() | st.integers(0, 400),
)
def test_no_job_exceeds_the_count_or_the_request(counted: list[int], asked: int | None, later: int | None) -> None:
    options = VacuumOptions(max_files=asked)

    (bound,) = counted_bounds(VACUUM, options, [{"files": files} for files in counted]).values()

    assert bound <= sum(counted)
    assert asked is None or bound <= asked


@pytest.mark.parametrize("name", [declared.name for declared in OPERATIONS.values() if declared.approval])
def test_every_bound_is_an_option_and_a_field_of_the_count(name: str) -> None:
    declared = get_operation(name)

    assert set(declared.bounds) <= set(declared.options_model().model_fields)
    assert declared.bounds or name == "recover_table", "only a table that is gone has nothing to lose"
