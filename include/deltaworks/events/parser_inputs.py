"""Inputs of the parser other than events: look-up databases and redaction keys, pinned by the driver and sent
to tasks."""

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
    """Pinned databases for look-ups, and keys for redaction; either may be absent.

    All rows of a batch are parsed with the same database versions and the same suppression list.
    """

    databases: PinnedDatabases | None = None
    redaction_keys: RedactionKeys | None = None

    @classmethod
    def pin(cls, spec: PipelineSpec, lake: StorageSpec, *, seal_for_batch: str | None = None) -> ParserInputs:
        """Pins the current inputs for parsing a pipeline's events.

        Args:
            seal_for_batch: the batch whose identities are written to the vault; None if events are read again, whose
                identities are in the vault already.

        Raises:
            ConfigError, ContractError, TransientError: see `pin_databases` and `load_redaction_keys`.
        """
        # Imported here, because tasks do not need the key service.
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
        """Creates a parser with these inputs; the other arguments are those of `Parser`.

        Raises:
            ConfigError, TransientError: see `create_lookups_and_masks`.
        """
        return Parser(
            spec,
            evolved=evolved,
            databases=self.databases,
            redaction_keys=self.redaction_keys,
            validate_rows=validate_rows,
        )


#: For pipelines without look-ups and personal data.
NO_PARSER_INPUTS = ParserInputs()
