"""What a pass over events reads beside them: fixed by its driver before it begins, and sent to its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaworks.events.conversion import Part
from deltaworks.events.evolution import Evolved
from deltaworks.events.origins import fixed_databases
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.events.enriching.databases import Databases
    from deltaworks.events.stripping import StripKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserInputs:
    """The databases that events are enriched from, and the keys by which personal data is stripped.

    All rows of a pass have their answers from the same databases, those of today, and are stripped by the same list of
    the suppressed. Without either, events are read as they are.
    """

    databases: Databases | None = None
    strip_keys: StripKeys | None = None

    @classmethod
    def fix(cls, spec: PipelineSpec, lake: StorageSpec, *, seal_as: str | None = None) -> ParserInputs:
        """What a pass over a pipeline's events needs, as it is now.

        Args:
            seal_as: the batch whose identities go to the vault; None for a pass that reads again what was read before.

        Raises:
            ConfigError, ContractError, TransientError: what `fixed_databases` and `fixed_strip_keys` raise.
        """
        # Tasks only parse: what opens keys is loaded by whoever fixes them.
        from deltaworks.events.strip_keys import fixed_strip_keys

        databases = fixed_databases(spec, lake)
        return cls(databases=databases, strip_keys=fixed_strip_keys(spec, lake, seal_as=seal_as))

    def parser(
        self,
        spec: PipelineSpec,
        *,
        evolved: Evolved | None = None,
        proof: Callable[[Sequence[Part]], None] | None = None,
    ) -> Parser:
        """A parser of the pass; the other arguments are `Parser`'s.

        Raises:
            ConfigError, TransientError: of a database.
        """
        return Parser(spec, evolved=evolved, databases=self.databases, strip_keys=self.strip_keys, proof=proof)


#: Of pipelines that neither look anything up nor have personal data.
NOTHING_BESIDE = ParserInputs()
