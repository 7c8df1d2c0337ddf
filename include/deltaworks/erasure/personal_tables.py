"""Lists the tables of a pipeline that may have rows of people: tables to purge, and exempt tables.

Gold tables are not included, because they are rebuilt from these tables. Shadow tables of a reprocess are included,
because they exist until an operator deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.reprocess import reprocess_ids
from deltaworks.specs.pipeline import PipelineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalTable:
    """A table that may have rows of a person.

    Args:
        needs_write_turn: whether a stream writes the table, so that a purge needs its write turn.
        exemption_reason: why its rows are exempt; empty if they are purged.
    """

    name: str
    needs_write_turn: bool
    exemption_reason: str = ""


def personal_tables(spec: PipelineSpec, home: PipelineHome) -> list[PersonalTable]:
    """Returns the tables of a pipeline that may have rows of people, including tables that do not exist yet.

    A keyed table is derived from its history. If the history is exempt, the keyed table is exempt too, because its
    purged rows would reappear.

    Raises:
        ContractError: REPROCESS_RECORD_UNREADABLE.
    """
    exempt = {table.name: table.erase_reason for table in spec.tables if table.erase == "keep"}
    derived = {keyed.name: keyed.history for keyed in (*spec.keyed_tables, *spec.latest_tables)}
    exempt |= {
        name: f"it follows {history}: {exempt[history]}" for name, history in derived.items() if history in exempt
    }
    written = dict.fromkeys([*(table.name for table in spec.tables), *spec.engine_tables, *derived], True)
    mutation_tables = [] if spec.mutations is None else [spec.mutations.names, spec.mutations.intervals]
    written |= dict.fromkeys((name for name in mutation_tables if name not in written), False)
    tables = [
        PersonalTable(name=name, needs_write_turn=turn, exemption_reason=exempt.get(name, ""))
        for name, turn in written.items()
    ]
    return [*tables, *_shadow_tables(spec, home, exempt)]


def _shadow_tables(spec: PipelineSpec, home: PipelineHome, exempt: Mapping[str, str]) -> Iterator[PersonalTable]:
    """Yields the shadow tables created by reprocesses."""
    for name in reprocess_ids(home.objects, spec.pipeline):
        plan = home.reprocess(name).plan()
        if plan is not None and plan.mode == "shadow":
            for table in dict.fromkeys([*plan.tables, *(spec.engine_tables if plan.all_tables else ())]):
                yield PersonalTable(
                    name=f"{table}__{plan.id}", needs_write_turn=False, exemption_reason=exempt.get(table, "")
                )
