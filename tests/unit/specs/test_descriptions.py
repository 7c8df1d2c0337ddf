"""Descriptions of tables and columns, derived from declarations."""

from __future__ import annotations

import pytest

from deltaworks.engine.ledger import BATCH_METADATA_SCHEMA, CHECKPOINT_STORE_SCHEMA
from deltaworks.events.archive import ARCHIVE_SCHEMA
from deltaworks.events.reasons import QUARANTINE_SCHEMA
from deltaworks.maintenance.table_health.catalog_tables import CONTROL_TABLES, RELAY_TABLES
from deltaworks.privacy.vault.reveal import REVEALS
from deltaworks.privacy.vault.tables import IDENTITIES, LINKS
from deltaworks.sources.objects.file_event_log import FILE_EVENT_SCHEMA, MESSAGE_QUARANTINE_SCHEMA
from deltaworks.specs.descriptions import control_description, table_descriptions
from deltaworks.specs.mutation import INTERVALS_COLUMNS, NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ArchiveSpec
from deltaworks.specs.project import load_catalog

CATALOG = load_catalog()


@pytest.mark.parametrize("spec", CATALOG.pipelines.values(), ids=lambda spec: spec.pipeline)
def test_each_table_has_a_text_an_owner_and_its_kind(spec: PipelineSpec) -> None:
    described = table_descriptions(spec)

    assert {name: one.kind for name, one in described.items()} == spec.table_kinds
    assert all(one.text and one.owner == spec.owner and one.tags == spec.tags for one in described.values())


@pytest.mark.parametrize("spec", CATALOG.pipelines.values(), ids=lambda spec: spec.pipeline)
def test_columns_that_the_engine_adds_have_texts(spec: PipelineSpec) -> None:
    described = table_descriptions(spec)
    for table in spec.tables:
        declared = {column.name for column in table.columns}
        without = {*table.column_types()} - declared - {*described[table.name].columns}
        assert not without, table.name
        texts = {column.name: column.description for column in table.columns if column.description}
        assert texts.items() <= described[table.name].columns.items()
    for live in spec.aggregation_tables:
        columns = live.count_columns(spec.table(live.reads).column_types())
        assert {*columns} - {*live.group_by} <= {*described[live.name].columns}
    assert {*QUARANTINE_SCHEMA.names} == {*described["quarantine"].columns}


def test_the_archive_and_tables_of_mutations_have_texts_for_all_columns() -> None:
    spec = next(spec for spec in CATALOG.pipelines.values() if spec.mutations is not None)
    described = table_descriptions(spec)
    assert spec.mutations is not None
    assert {*NAMES_COLUMNS} <= {*described[spec.mutations.names].columns}
    assert {*INTERVALS_COLUMNS} <= {*described[spec.mutations.intervals].columns}
    archived = spec.model_copy(update={"archive": ArchiveSpec(retain_days=30)})
    assert {*ARCHIVE_SCHEMA.names} == {*table_descriptions(archived)["archive"].columns}


def test_control_and_vault_tables_are_described() -> None:
    for name in (*CONTROL_TABLES, *RELAY_TABLES):
        assert control_description(name).text
    for name, schema in {
        "checkpoint_store": CHECKPOINT_STORE_SCHEMA,
        "batch_metadata_store": BATCH_METADATA_SCHEMA,
        "file_events": FILE_EVENT_SCHEMA,
        "message_quarantine": MESSAGE_QUARANTINE_SCHEMA,
        "identities": IDENTITIES,
        "links": LINKS,
        "reveals": REVEALS,
    }.items():
        assert {*schema.names} <= {*control_description(name).columns}, name


def test_columns_of_private_fields_are_personal_and_so_are_those_of_tables_derived_from_them() -> None:
    spec = next(spec for spec in CATALOG.pipelines.values() if spec.privacy is not None)
    assert spec.privacy is not None
    described = table_descriptions(spec)
    personal = {
        (table.name, column.name)
        for table in spec.tables
        for column in table.columns
        if (field := spec.privacy.field_for(column.path)) is not None and field.action != "drop"
    }

    assert personal
    assert all(column in described[table].personal for table, column in personal)
    for keyed in spec.keyed_tables:
        assert described[keyed.name].personal == described[keyed.history].personal & {*keyed.types}
    for gold in spec.gold.tables:
        for name in gold.reads:
            if name in described:
                assert described[name].personal <= described[gold.name].personal
