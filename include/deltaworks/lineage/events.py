"""Builds OpenLineage events with OpenLineage's client. Import this module lazily, not at the start of a job."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
)

from deltaworks import __version__
from deltaworks.lineage.datasets import Dataset
from deltaworks.specs.environment import LineageSpec

PRODUCER = f"https://github.com/deltaworks/deltaworks/tree/v{__version__}"


def open_client(spec: LineageSpec) -> Callable[[Any], None]:
    """Returns a function that sends one event by the declared transport."""
    return OpenLineageClient(config={"transport": spec.resolved_transport()}).emit


def build_event(
    state: str,
    *,
    at: str,
    run_id: str,
    namespace: str,
    job: str,
    kind: str,
    inputs: Iterable[Dataset] = (),
    outputs: Iterable[Dataset] = (),
    parent: str = "",
    error: str = "",
) -> RunEvent:
    """Returns an event of a run.

    Args:
        state: START, RUNNING, COMPLETE or FAIL.
        kind: STREAMING or BATCH.
        parent: `namespace/job/run id` of the task that started the run, in the format of Airflow's provider.
    """
    facets: dict[str, Any] = {}
    if (parent_facet := _parent(parent)) is not None:
        facets["parent"] = parent_facet
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="PYTHON")
    integration = job_type_job.JobTypeJobFacet(processingType=kind, integration="DELTAWORKS", jobType="JOB")
    return RunEvent(
        eventTime=at,
        producer=PRODUCER,
        eventType=RunState[state],
        run=Run(runId=run_id, facets=facets),
        job=Job(namespace=namespace, name=job, facets={"jobType": integration}),
        inputs=[InputDataset(dataset.namespace, dataset.name, facets=_facets(dataset)) for dataset in inputs],
        outputs=[_output(dataset) for dataset in outputs],
    )


def _parent(text: str) -> parent_run.ParentRunFacet | None:
    """Returns the parent facet; None if the text has another format. Namespaces can contain slashes, job names
    cannot."""
    namespace, _, rest = text.rpartition("/")[0].rpartition("/")
    run_id = text.rpartition("/")[2]
    try:
        uuid.UUID(run_id)
    except ValueError:
        return None
    return parent_run.ParentRunFacet(
        run=parent_run.Run(runId=run_id), job=parent_run.Job(namespace=namespace, name=rest)
    )


def _output(dataset: Dataset) -> OutputDataset:
    facets: dict[str, Any] = {}
    if dataset.rows is not None:
        facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=dataset.rows
        )
    return OutputDataset(dataset.namespace, dataset.name, facets=_facets(dataset), outputFacets=facets)


def _facets(dataset: Dataset) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if dataset.fields:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name=name, type=kind, ordinal_position=index)
            for index, (name, kind) in enumerate(dataset.fields.items(), start=1)
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    if dataset.columns:
        columns = {
            name: column_lineage_dataset.Fields(
                inputFields=[
                    column_lineage_dataset.InputField(
                        namespace=origin.namespace,
                        name=origin.dataset,
                        field=origin.name,
                        transformations=[column_lineage_dataset.Transformation(type="DIRECT")],
                    )
                    for origin in origins
                ]
            )
            for name, origins in dataset.columns.items()
        }
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=columns)
    return facets
