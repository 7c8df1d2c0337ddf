"""A DAG file with a form field of every kind, to show how Airflow's form renders a JSON schema."""

from __future__ import annotations

from airflow.sdk import DAG, Param
from airflow.sdk.bases.operator import BaseOperator

OPTIONAL = {
    "text": Param(None, type=["null", "string"], title="Text", description="An optional text"),
    "pattern": Param(None, type=["null", "string"], pattern=r"^\d+(-\d+)?$", title="Batches"),
    "integer": Param(None, type=["null", "integer"], minimum=0, title="Hours"),
    "number": Param(None, type=["null", "number"], minimum=0, title="Ratio"),
    "flag": Param(False, type="boolean", title="Count only"),
    "choice": Param(
        None,
        type=["null", "string"],
        enum=[None, "events", "purchase"],
        values_display={"null": "(all tables)"},
        title="Table",
    ),
    "choice_with_default": Param("prepared", type="string", enum=["prepared", "source", "none"], title="Repair"),
    "choices": Param(
        None,
        type=["null", "array"],
        items={"type": "string", "enum": ["events", "purchase"]},
        examples=["events", "purchase"],
        title="Tables",
        section="Lists",
    ),
    "lines": Param(None, type=["null", "array"], items={"type": "string"}, title="Objects", section="Lists"),
    "moment": Param(None, type=["null", "string"], format="date-time", title="Time", section="Times"),
    "day": Param(None, type=["null", "string"], format="date", title="Date", section="Times"),
}

with DAG("field_kinds", schedule=None, params=OPTIONAL):
    BaseOperator(task_id="nothing")

with DAG("required_text", schedule=None, params={"text": Param("", type="string", title="Text")}):
    BaseOperator(task_id="nothing")

with DAG(
    "required_choices",
    schedule=None,
    params={
        "choices": Param(
            [], type="array", items={"type": "string", "enum": ["a", "b"]}, examples=["a", "b"], title="Tables"
        )
    },
):
    BaseOperator(task_id="nothing")

# Pydantic's own schema of an optional integer has no type, which makes a field of text.
with DAG("any_of", schedule=None, params={"hours": Param(None, anyOf=[{"type": "integer"}, {"type": "null"}])}):
    BaseOperator(task_id="nothing")
