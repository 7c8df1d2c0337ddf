"""The home of one pipeline: its records and the keys of its control tables, by which every job opens them.

It holds the object store and the pipeline's name, and opens nothing before it is used. Tables are keys here; the `Lake`
of the layer above opens them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.generations import GenerationStore
from deltaworks.control.records.held_tables import HeldTableRecords
from deltaworks.control.records.mutation import MutationBatches
from deltaworks.control.records.prepared import PreparedBatches, PreparedReplays
from deltaworks.control.records.readers import Readers
from deltaworks.control.records.reprocess import ReprocessRecords
from deltaworks.control.records.rollback import Rollbacks
from deltaworks.control.records.start_over import StartOvers
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.control.records.approval import Approvals
    from deltaworks.control.records.model import ModelRuns
    from deltaworks.control.records.specs import SpecRecords


class PipelineHome:
    """Keys and records of one pipeline. Cheap to build; safe to use from several threads, as its object store is."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self.objects = objects
        self.pipeline = pipeline

    @classmethod
    def open(cls, storage: StorageSpec, pipeline: str) -> PipelineHome:
        """The home of a pipeline in the lake that a storage spec describes."""
        return cls(open_objects(storage), pipeline)

    @cached_property
    def prepared(self) -> PreparedBatches:
        """What batches write, fixed before they write it."""
        return PreparedBatches(self.objects, self.pipeline)

    @cached_property
    def replays(self) -> PreparedReplays:
        """What replays of quarantined rows write, fixed before they write it."""
        return PreparedReplays(self.objects, self.pipeline)

    @cached_property
    def generations(self) -> GenerationStore:
        """The generation and the checkpoints of the ingest query."""
        return GenerationStore(self.objects, self.pipeline)

    @cached_property
    def start_overs(self) -> StartOvers:
        """How each generation began."""
        return StartOvers(self.objects, self.pipeline)

    @cached_property
    def rollbacks(self) -> Rollbacks:
        """Restores of one table each."""
        return Rollbacks(self.objects, self.pipeline)

    @cached_property
    def mutations(self) -> MutationBatches:
        """Batches of updates and deletes."""
        return MutationBatches(self.objects, self.pipeline)

    @cached_property
    def approvals(self) -> Approvals:
        """What people approved. Its module is of use to operations alone, and not to streams."""
        from deltaworks.control.records.approval import Approvals

        return Approvals(self.objects, self.pipeline)

    @cached_property
    def models(self) -> ModelRuns:
        """Trainings of models. Its module is of use to trainings and gold alone, and not to streams."""
        from deltaworks.control.records.model import ModelRuns

        return ModelRuns(self.objects, self.pipeline)

    @cached_property
    def held(self) -> HeldTableRecords:
        """Tables whose commits are held back, and requests to resume them."""
        return HeldTableRecords(self.objects, self.pipeline)

    @cached_property
    def readers(self) -> Readers:
        """Claims of readers that keep versions of tables."""
        return Readers(self.objects, self.pipeline)

    @cached_property
    def specs(self) -> SpecRecords:
        """The declarations the stream has run with. Its module takes the whole of `specs` with it."""
        from deltaworks.control.records.specs import SpecRecords

        return SpecRecords(self.objects, self.pipeline)

    def reprocess(self, reprocess_id: str) -> ReprocessRecords:
        """The records of one reprocess.

        Raises:
            ConfigError: REPROCESS_ID_INVALID.
        """
        return ReprocessRecords(self.objects, self.pipeline, reprocess_id)

    def table(self, name: str) -> str:
        """The key of a bronze, live, gold or quarantine table."""
        return paths.table(self.pipeline, name)

    def control(self, name: str = "") -> str:
        """The key of the control folder, or of a control table or object in it."""
        return paths.pipeline_control(self.pipeline, name)
