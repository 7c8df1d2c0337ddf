"""The control records and table keys of one pipeline.

Opens nothing until it is used. Tables are keys here; `deltaworks.tables.lake.Lake` opens them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.generations import GenerationStore, Rollbacks, StartOvers
from deltaworks.control.records.held_tables import HeldTableRecords
from deltaworks.control.records.mutation import MutationBatches
from deltaworks.control.records.prepared import PreparedBatches, PreparedReplays
from deltaworks.control.records.readers import ReaderClaims
from deltaworks.control.records.reprocess import ReprocessRecords
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.control.records.approval import Approvals
    from deltaworks.control.records.model import ModelRuns
    from deltaworks.control.records.specs import SpecRecords


class PipelineHome:
    """Keys and records of one pipeline. Cheap to create and thread-safe."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self.objects = objects
        self.pipeline = pipeline

    @classmethod
    def open(cls, storage: StorageSpec, pipeline: str) -> PipelineHome:
        """Opens the records of a pipeline in the given storage."""
        return cls(open_objects(storage), pipeline)

    @cached_property
    def prepared(self) -> PreparedBatches:
        """Prepared batches: the files of each batch, fixed before the first commit."""
        return PreparedBatches(self.objects, self.pipeline)

    @cached_property
    def replays(self) -> PreparedReplays:
        """Prepared replays of quarantined rows, fixed before the first commit."""
        return PreparedReplays(self.objects, self.pipeline)

    @cached_property
    def generations(self) -> GenerationStore:
        """The generation and the Spark checkpoints of the ingest query."""
        return GenerationStore(self.objects, self.pipeline)

    @cached_property
    def start_overs(self) -> StartOvers:
        """Start-over records, one for each generation after the first."""
        return StartOvers(self.objects, self.pipeline)

    @cached_property
    def rollbacks(self) -> Rollbacks:
        """Restores of single tables."""
        return Rollbacks(self.objects, self.pipeline)

    @cached_property
    def mutations(self) -> MutationBatches:
        """Batches of updates and deletes."""
        return MutationBatches(self.objects, self.pipeline)

    @cached_property
    def approvals(self) -> Approvals:
        """Approvals of operations. Imported lazily: only operations use them."""
        from deltaworks.control.records.approval import Approvals

        return Approvals(self.objects, self.pipeline)

    @cached_property
    def models(self) -> ModelRuns:
        """Training runs of models. Imported lazily: only training and gold builds use them."""
        from deltaworks.control.records.model import ModelRuns

        return ModelRuns(self.objects, self.pipeline)

    @cached_property
    def held(self) -> HeldTableRecords:
        """Tables whose commits are held back, and requests to resume them."""
        return HeldTableRecords(self.objects, self.pipeline)

    @cached_property
    def readers(self) -> ReaderClaims:
        """Claims of readers that pin versions of tables."""
        return ReaderClaims(self.objects, self.pipeline)

    @cached_property
    def specs(self) -> SpecRecords:
        """Specs that the stream has run with. Imported lazily: the module imports all of `deltaworks.specs`."""
        from deltaworks.control.records.specs import SpecRecords

        return SpecRecords(self.objects, self.pipeline)

    def reprocess(self, reprocess_id: str) -> ReprocessRecords:
        """Returns the records of one reprocess.

        Raises:
            ConfigError: REPROCESS_ID_INVALID.
        """
        return ReprocessRecords(self.objects, self.pipeline, reprocess_id)

    def table(self, name: str) -> str:
        """Returns the key of a bronze, live, gold or quarantine table."""
        return paths.table(self.pipeline, name)

    def control(self, name: str = "") -> str:
        """Returns the key of the control folder, or of one table or object in it."""
        return paths.pipeline_control(self.pipeline, name)
