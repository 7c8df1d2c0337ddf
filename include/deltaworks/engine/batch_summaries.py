"""Creates the progress log of a stream, with the summaries for the console that its thread also writes."""

from __future__ import annotations

from deltaworks.control import paths
from deltaworks.control.health.throughput import ThroughputWriter
from deltaworks.control.home import PipelineHome
from deltaworks.control.summaries.quarantine import QuarantineCounter
from deltaworks.control.summaries.stream import StreamSummaryWriter
from deltaworks.engine.driver_metrics import DriverMetrics
from deltaworks.engine.progress import ProgressLog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec


def progress_log(
    storage: StorageSpec, home: PipelineHome, spec: PipelineSpec, *, epoch: int, metrics: DriverMetrics
) -> ProgressLog:
    """Returns the progress log of one run of a pipeline's stream; the caller starts it.

    Raises:
        ContractError: GENERATIONS_UNREADABLE.
    """
    return ProgressLog(
        storage,
        spec.pipeline,
        owner_epoch=epoch,
        metrics=metrics,
        throughput=ThroughputWriter(home.objects, paths.throughput(home.control())),
        summary=StreamSummaryWriter(home.objects, spec.pipeline),
        quarantine=QuarantineCounter(
            home.objects, spec.pipeline, generation=home.generations.current(), spec=spec.fingerprint()
        ),
    )
