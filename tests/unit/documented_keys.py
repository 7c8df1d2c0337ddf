"""The keys of specs in the docs: which section describes which models, and whether a key exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

from deltaworks.specs import (
    alert_channels,
    alert_rule,
    collector,
    enrich,
    environment,
    environment_sections,
    feeds,
    gold,
    models,
    mutation,
    pipeline_sections,
    privacy,
    record_sources,
    shares,
    sources,
    sql_server,
    storage,
    table,
)
from deltaworks.specs.base import Reference, Spec
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec, SegmentSpec
from deltaworks.specs.environment import EnvironmentSpec, PricesSpec
from deltaworks.specs.keyed import KeyedSpec
from deltaworks.specs.live import LiveTableSpec
from deltaworks.specs.maintenance import MaintenanceSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import CleanSpec, ListingSpec, RelaySpec

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROOTS: Final[tuple[type[Spec], ...]] = (PipelineSpec, EnvironmentSpec, RelaySpec, CollectorSpec)
#: The section (page and heading) that documents all keys of these models.
SECTIONS: Final[Mapping[str, tuple[type[Spec], ...]]] = {
    "reference/pipeline/index.md#top-level": (PipelineSpec, pipeline_sections.UnwrapSpec, models.TrainingSpec),
    "reference/pipeline/source.md#source": (sources.FileSourceSpec, record_sources.CsvSpec, record_sources.TsvSpec),
    "reference/pipeline/source.md#budgets": (record_sources.BudgetSpec,),
    "reference/pipeline/source.md#archive": (pipeline_sections.ArchiveSpec,),
    "reference/pipeline/source.md#quarantine-stream": (
        pipeline_sections.QuarantineSpec,
        pipeline_sections.StreamSpec,
        shares.StreamShareSpec,
    ),
    "reference/sources.md#kafka": (record_sources.KafkaSourceSpec, record_sources.KafkaSecuritySpec),
    "reference/sources.md#in-a-pipeline": (record_sources.KinesisSourceSpec,),
    "reference/sources.md#delta-tables": (sources.DeltaSourceSpec,),
    "reference/pipeline/events.md#event": (pipeline_sections.EventSpec, pipeline_sections.EventNameSpec),
    "reference/pipeline/events.md#times": (pipeline_sections.EventTimeSpec,),
    "reference/pipeline/enrichment.md#enrich-private": (enrich.EnrichSpec, enrich.PrivateSpec),
    "explanation/personal-data.md#personal-data": (
        privacy.PrivacySpec,
        privacy.PrivateFieldSpec,
        privacy.ScanSpec,
        privacy.RegulationSpec,
        privacy.ChildSpec,
        privacy.OptOutSpec,
        privacy.EraseSpec,
    ),
    "reference/pipeline/tables.md#tables": (
        table.TableSpec,
        table.ColumnSpec,
        table.DuplicatesSpec,
        mutation.ChangeNotificationSpec,
    ),
    "reference/pipeline/tables.md#rules": (table.TableRuleSpec,),
    "reference/pipeline/tables.md#keyed-tables": (KeyedSpec,),
    "reference/pipeline/mutations.md#mutations": (mutation.MutableSpec, mutation.MutationsSpec),
    "reference/pipeline/live.md#live": (LiveTableSpec,),
    "reference/pipeline/gold.md#gold": (
        gold.GoldSpec,
        gold.DedupeSpec,
        gold.GoldTableSpec,
        gold.ChecksSpec,
        gold.IntervalsSpec,
        gold.GrainSpec,
    ),
    "reference/pipeline/gold.md#gold-by-hours": (gold.AffectsSpec,),
    "reference/pipeline/references.md#references": (gold.ReferenceSpec, gold.ReferenceColumn),
    "reference/pipeline/references.md#views": (gold.ViewSpec, gold.AnnounceSpec),
    "reference/pipeline/references.md#widgets": (gold.WidgetSpec,),
    "reference/pipeline/analysis.md#dashboards": (DashboardSpec, PanelSpec, SegmentSpec),
    "reference/pipeline/analysis.md#models": (models.ModelSpec, models.FoldsSpec, models.PublishSpec),
    "reference/pipeline/operations.md#maintenance": (MaintenanceSpec,),
    "reference/pipeline/operations.md#health": (pipeline_sections.HealthLimitsSpec,),
    "how-to/write-rules.md#declare-a-rule": (
        alert_rule.RuleSpec,
        alert_rule.BoundsSpec,
        alert_rule.GroupingSpec,
    ),
    "how-to/write-rules.md#baselines": (alert_rule.BaselineSpec,),
    "how-to/feed-other-systems.md#declare-a-feed": (feeds.FeedSpec,),
    "how-to/feed-other-systems.md#sinks": (
        feeds.SqsSinkSpec,
        feeds.SnsSinkSpec,
        feeds.KafkaSinkSpec,
        feeds.WebhookSinkSpec,
    ),
    "reference/pipeline/environment.md#an-environment": (
        EnvironmentSpec,
        storage.StorageSpec,
        storage.AwsSpec,
        environment.SparkSpec,
        shares.ClusterShares,
        shares.ClusterSpec,
        shares.PoolSpec,
        shares.ShareSpec,
        shares.LiveShareSpec,
        environment.AirflowSpec,
        environment.LineageSpec,
        PricesSpec,
        privacy.PrivacySettings,
        privacy.KeyringSpec,
        privacy.KmsSpec,
    ),
    "reference/pipeline/environment.md#catalogs": (
        environment_sections.GlueCatalogSpec,
        environment_sections.UnityCatalogSpec,
        environment_sections.HiveCatalogSpec,
    ),
    "reference/pipeline/environment.md#groups-of-streams": (environment.StreamGroupSpec,),
    "reference/pipeline/environment.md#approvals": (
        environment.ApprovalsSpec,
        environment.PersonSpec,
    ),
    "reference/pipeline/environment.md#alerts": (
        alert_channels.AlertsSpec,
        alert_channels.RouteSpec,
        alert_channels.SnsChannelSpec,
        alert_channels.WebhookChannelSpec,
        alert_channels.SlackChannelSpec,
        alert_channels.TeamsChannelSpec,
        alert_channels.PagerDutyChannelSpec,
        alert_channels.AlertmanagerChannelSpec,
        alert_channels.EmailChannelSpec,
        alert_channels.LogChannelSpec,
    ),
    "how-to/deploy.md#kubernetes": (
        environment_sections.KubernetesSpec,
        environment_sections.PodSize,
        environment_sections.CollectorPodsSpec,
    ),
    "how-to/query-with-spark-connect.md#run-the-server": (
        sql_server.SparkConnectSpec,
        sql_server.ConnectListenSpec,
    ),
    "how-to/query-from-bi-tools.md#run-a-server": (
        sql_server.SqlServerSpec,
        sql_server.SqlListenSpec,
        sql_server.SqlTlsSpec,
        sql_server.SqlRoleSpec,
        sql_server.SqlLimitsSpec,
    ),
    "how-to/remediate.md#declare-a-remediation": (
        environment_sections.RemediationSpec,
        environment_sections.TrafficWebhookSpec,
        environment_sections.VerifySpec,
    ),
    "reference/pipeline/relay.md#a-relay": (RelaySpec, ListingSpec, CleanSpec),
    "how-to/collect-over-http.md#declare-a-collector": (collector.CollectorSourceSpec,),
    "reference/collector-protocol.md#declaration": (
        CollectorSpec,
        collector.ListenSpec,
        collector.SpoolSpec,
        collector.LimitsSpec,
        collector.CollectorSourceSpec,
        collector.KeySpec,
        collector.RateSpec,
        collector.LandingSinkSpec,
        collector.KinesisSinkSpec,
        collector.KafkaSinkSpec,
    ),
}


def fields(model: type[Spec]) -> dict[str, tuple[type[Spec], ...]]:
    """Returns the keys of a model, as they are written, with the models of their values."""
    return {field.alias or name: tuple(_specs_in(field.annotation)) for name, field in model.model_fields.items()}


def _specs_in(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec) and annotation is not Reference:
        yield annotation
    for argument in get_args(annotation):
        yield from _specs_in(argument)


@cache
def reachable() -> frozenset[type[Spec]]:
    """Returns all models of declarations."""
    found: set[type[Spec]] = set()
    waiting = list(ROOTS)
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            waiting += [nested for kinds in fields(model).values() for nested in kinds]
    return frozenset(found)


@cache
def nested_specs() -> Mapping[str, frozenset[type[Spec]]]:
    """Returns the keys with a section of keys as value, and the models of that section."""
    found: dict[str, frozenset[type[Spec]]] = {}
    for model in reachable():
        for name, kinds in fields(model).items():
            if kinds:
                found[name] = found.get(name, frozenset()) | frozenset(kinds)
    return found


def resolves(key: str) -> bool:
    """Returns whether a dotted key, which may begin at any section, exists."""
    first, *rest = key.split(".")
    return any(_has_key(model, rest) for model in nested_specs().get(first, ()))


def _has_key(model: type[Spec], parts: list[str]) -> bool:
    if not parts:
        return True
    name, *rest = parts
    kinds = fields(model).get(name)
    if kinds is None:
        return False
    # Keys below a free mapping, such as settings of Spark, are not declared.
    return not rest or not kinds or any(_has_key(kind, rest) for kind in kinds)


def code_words(text: str) -> set[str]:
    spans = re.findall(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    return set(re.findall(r"\w+", " ".join(block or inline for block, inline in spans)))


def anchored_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yields the anchor and the text below each heading, up to the next one."""
    without_comments = re.sub(r"```.*?```", lambda block: re.sub(r"^#", " #", block[0], flags=re.M), text, flags=re.S)
    _, *parts = re.split(r"^#+ (.+)$", without_comments, flags=re.MULTILINE)
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"), body


def undocumented_keys(sections: Mapping[str, tuple[type[Spec], ...]] = SECTIONS) -> list[str]:
    """Returns the keys of models that their section does not name in code, and models without a section."""
    missing = []
    for section, kinds in sections.items():
        page, _, anchor = section.partition("#")
        texts = [body for name, body in anchored_sections((DOCS / page).read_text()) if name == anchor]
        named = code_words("\n".join(texts))
        missing += [f"{section}: {kind.__name__}.{key}" for kind in kinds for key in fields(kind) if key not in named]
    documented = {kind for kinds in sections.values() for kind in kinds}
    return missing + [f"no section: {kind.__name__}" for kind in sorted(reachable() - documented, key=str)]


ROW = re.compile(r"^\|([^|\n]*)\|", re.MULTILINE)


def unknown_rows(text: str, document: Path) -> list[str]:
    """Returns the keys in the first column of tables of keys that no model has."""
    page = str(document.relative_to(DOCS)) if document.is_relative_to(DOCS) else ""
    unknown = []
    for anchor, body in anchored_sections(text):
        kinds = SECTIONS.get(f"{page}#{anchor}", ())
        if not kinds and not page.startswith("reference/pipeline/"):
            continue
        for block in re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE):
            header, *cells = ROW.findall(block)
            if header.strip().startswith("key"):
                unknown += _unknown_cells(header, cells[1:], kinds)
    return unknown


def _unknown_cells(header: str, cells: Iterable[str], kinds: tuple[type[Spec], ...]) -> Iterator[str]:
    of = re.search(r"`([^`]+)`", header)
    if of is not None:
        kinds = tuple(nested_specs().get(_normal(of[1]).split(".")[-1], ()))
    prefix = ""
    for cell in cells:
        for code in re.findall(r"`([^`]+)`", cell):
            key = _normal(code)
            key = f"{prefix}{key}" if key.startswith(".") else key
            prefix = key.rpartition(".")[0]
            parts = key.split(".")
            if not any(_has_key(kind, parts) for kind in (*kinds, *ROOTS)):
                yield key


def _normal(code: str) -> str:
    """Returns a key without value, brackets and placeholders: `panels[].title`, `kind: sns`, `sources.<name>.keys`."""
    return re.sub(r"\[\]|\.<\w+>|\.[A-Z]+\b", "", code.partition(":")[0])
