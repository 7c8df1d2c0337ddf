"""What a pass over events reads beside them: fixed by its driver before it begins, and sent to its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaworks.events.conversion import TableRows
from deltaworks.events.evolution import EvolvedColumns
from deltaworks.events.parse import Parser
from deltaworks.events.source_fields import pin_databases
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.events.enrichment.databases import PinnedDatabases
    from deltaworks.events.redaction import RedactionKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserInputs:
    """The databases that events are enriched from, and the keys by which personal data is stripped.

    All rows of a pass have their answers from the same databases, those of today, and are stripped by the same list of
    the suppressed. Without either, events are read as they are.
    """

    databases: PinnedDatabases | None = None
    redaction_keys: RedactionKeys | None = None

    @classmethod
    def pin(cls, spec: PipelineSpec, lake: StorageSpec, *, seal_for_batch: str | None = None) -> ParserInputs:
        """What a pass over a pipeline's events needs, as it is now.

        Args:
            seal_as: the batch whose identities go to the vault; None for a pass that reads again what was read before.

        Raises:
            ConfigError, ContractError, TransientError: what `fixed_databases` and `fixed_strip_keys` raise.
        """
        # Tasks only parse: what opens keys is loaded by whoever fixes them.
        from deltaworks.events.redaction_keys import load_redaction_keys

        databases = pin_databases(spec, lake)
        return cls(databases=databases, redaction_keys=load_redaction_keys(spec, lake, seal_for_batch=seal_for_batch))

    def create_parser(
        self,
        spec: PipelineSpec,
        *,
        evolved: EvolvedColumns | None = None,
        validate_rows: Callable[[Sequence[TableRows]], None] | None = None,
    ) -> Parser:
        """A parser of the pass; the other arguments are `Parser`'s.

        Raises:
            ConfigError, TransientError: of a database.
        """
        return Parser(
            spec,
            evolved=evolved,
            databases=self.databases,
            redaction_keys=self.redaction_keys,
            validate_rows=validate_rows,
        )


#: Of pipelines that neither look anything up nor have personal data.
NO_PARSER_INPUTS = ParserInputs()
