"""Every operation is declared once, its job and command follow the declaration; unavailable ones are not offered."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.operations.base import OPERATIONS_MODULE, Operation
from deltaworks.operations.dag_forms import restrictions, unavailable_reason
from deltaworks.operations.options import option_fields
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import pipeline_spec
from tests.offenders import failures
from tests.processes import run_process
from tests.unit.cli.command_tree import all_commands
from tests.unit.recovery.replay_harness import orders

HEAVY = ("pyspark", "delta", "deltalake", "pyarrow", "boto3", "botocore", "duckdb", "airflow")


def test_exactly_the_operations_that_spark_runs_have_an_entry_point_for_spark_submit() -> None:
    jobs = {
        path.stem: text
        for path in (PROJECT_ROOT / "spark_jobs").glob("*.py")
        if "deltaworks.operations.job" in (text := path.read_text())
    }

    assert set(jobs) == {name for name, declared in OPERATIONS.items() if declared.needs_spark}
    unnamed = [name for name, text in jobs.items() if f'main("{name}")' not in text or f"`{name}`" not in text]
    assert unnamed == []


def test_the_module_runs_an_operation_by_its_name() -> None:
    help_text = run_process([sys.executable, "-m", OPERATIONS_MODULE, "annotate", "--help"], check=True).stdout
    unknown = run_process([sys.executable, "-m", OPERATIONS_MODULE, "anotate"])

    assert OPERATIONS["annotate"].summary.split(",")[0] in help_text
    assert unknown.returncode == 1
    assert "one of: " in unknown.stderr


def check_parameters(declared: Operation) -> None:
    command = all_commands()[declared.command]
    parameters = {parameter.name: parameter for parameter in command.params}
    fields = {field.name: field for field in option_fields(declared.options_model())}

    subject = parameters.pop(declared.scope)
    assert (subject.param_type_name, subject.required) == ("argument", True)
    assert set(parameters) - {"help", "as_json", "as_csv", "wide"} == set(fields) | {"in_airflow", "wait_minutes"}
    for name, field in fields.items():
        parameter = parameters[name]
        assert parameter.help == field.help, name
        assert parameter.required == field.required, name
        assert (parameter.default or None) == (field.default or None), name
        if field.positional:
            assert parameter.param_type_name == "argument", name
        else:
            assert parameter.opts == [field.flag], name
            assert parameter.secondary_opts == ([field.off_flag] if field.kind == "switch" else []), name


def test_a_command_takes_its_subject_and_exactly_the_options_of_the_operation() -> None:
    assert failures(check_parameters, OPERATIONS) == {}


def check_help(declared: Operation) -> None:
    shown = all_commands()[declared.command].help

    assert shown.splitlines()[0] == declared.summary
    assert declared.concurrency_note() in shown


def test_a_command_describes_its_effect_and_concurrency() -> None:
    assert failures(check_help, OPERATIONS) == {}


def check_texts(declared: Operation) -> None:
    assert declared.summary.endswith(".")
    assert (declared.load().__doc__ or "").strip()
    for field in option_fields(declared.options_model()):
        assert re.fullmatch(r"(?s)\S.*\S\.", field.help), field.name


def test_an_operation_and_its_options_are_explained_in_sentences() -> None:
    assert failures(check_texts, OPERATIONS) == {}


def check_dry_run(declared: Operation) -> None:
    fields = {field.name: field for field in option_fields(declared.options_model())}

    if declared.destructive:
        assert fields["dry_run"].default is True
    assert declared.destructive or not declared.approval


def test_a_destructive_operation_is_a_dry_run_by_default() -> None:
    assert failures(check_dry_run, OPERATIONS) == {}


def test_no_two_operations_share_a_command_or_what_they_run() -> None:
    for attribute in ("command", "run"):
        counts = Counter(getattr(declared, attribute) for declared in OPERATIONS.values())

        assert [name for name, count in counts.items() if count > 1] == []


def test_options_are_read_without_any_engine() -> None:
    program = f"""
import json, sys
from deltaworks.operations.registry import OPERATIONS
before = [name for name in {("pydantic", *HEAVY)!r} if name in sys.modules]
for declared in OPERATIONS.values():
    declared.options_model()
print(json.dumps([before, [name for name in {HEAVY!r} if name in sys.modules]]))
"""
    done = run_process([sys.executable, "-c", program], cwd=PROJECT_ROOT / "include")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], []]


def test_an_unknown_name_is_rejected_with_the_closest_match() -> None:
    with pytest.raises(ConfigError, match="OPERATION_UNKNOWN") as caught:
        get_operation("restor")

    assert "restore" in caught.value.hint


def test_a_check_of_operations_names_the_one_that_fails() -> None:
    silent = replace(OPERATIONS["restore"], summary="Goes back")

    for check in (check_texts, check_help):
        failed = failures(check, {"silent": silent, "restore": OPERATIONS["restore"]})
        assert list(failed) == ["silent"]
        assert failed["silent"].startswith("AssertionError")


SOURCES: dict[str, dict[str, Any]] = {
    "s3_sqs": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
    "kafka": {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["events"]},
    "kinesis": {"kind": "kinesis", "stream": "events"},
    "delta": {"kind": "delta", "pipeline": "other", "table": "events"},
}


def reading(kind: str) -> PipelineSpec:
    return pipeline_spec(orders("int"), source=SOURCES[kind])


@pytest.mark.parametrize(
    ("kind", "never"),
    [
        ("s3_sqs", set()),
        ("kafka", {"recover_files"}),
        ("kinesis", {"recover_files"}),
        ("delta", {"reprocess", "recover_files"}),
    ],
)
def test_operations_the_source_does_not_support_are_unavailable(kind: str, never: set[str]) -> None:
    reasons = {name: unavailable_reason(declared, reading(kind)) for name, declared in OPERATIONS.items()}

    without = {
        "mutate_tables",
        "purge_deleted",
        "rebuild_gold",
        "refresh_gold",
        "verify_gold",
        "replay_feed",
        "train_model",
    }
    assert {name for name, reason in reasons.items() if reason is not None} == never | without
    assert all(reason.endswith(".") for reason in reasons.values() if reason)


def test_a_page_names_tables_that_need_a_shadow() -> None:
    spec = load_catalog("local").pipeline("engagement")

    text = restrictions(get_operation("reprocess"), spec)

    assert unavailable_reason(get_operation("reprocess"), spec) is None
    assert "`activities`" in text
    assert "*Shadow*, or *Tables* to some of `requests`" in text
    assert "REPROCESS_MUTABLE" in text
    assert "Leave *Table* empty" in restrictions(get_operation("restore"), spec)
    assert restrictions(get_operation("vacuum_tables"), spec) == ""
    assert {restrictions(declared, reading("kafka")) for declared in OPERATIONS.values()} == {""}
