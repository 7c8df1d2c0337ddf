"""Open issues: each with its cause, since when, the next step, and the suggested action.

An unhealthy verdict on a stream and the alert of that verdict are one issue, which is shown as in the current verdict.
Other alerts on the same stream are issues of their own. An alert's subject determines the DAG whose readers may see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltaworks.alerts.raising import Alert, alert_key, alerts
from deltaworks.console.cached_objects import FAST_TTL_SECONDS
from deltaworks.console.page_context import PageContext, parse_instant
from deltaworks.control import paths
from deltaworks.control.health.report import Report
from deltaworks.control.health.verdicts import Verdict
from deltaworks.errors import DeltaworksError
from deltaworks.errors.conditions import SEVERITIES, alert_for_verdict, catalog, next_step_for, verdict_alerts
from deltaworks.operations.registry import get_operation
from deltaworks.specs.dag_ids import HEALTH_DAG, dag_id, split_dag_id
from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_SEPARATORS = re.compile(r"[ .:/]")


def pipeline_of(catalog: Catalog, subject: str) -> str:
    """Returns the pipeline that a subject belongs to; empty if there is none."""
    for word in [word for word in _SEPARATORS.split(subject) if word][:2]:
        name = split_dag_id(word)[0] or word
        if catalog.declares("pipeline", name):
            return name
    return ""


def alert_dag(catalog: Catalog, subject: str) -> str:
    """Returns the DAG whose readers may see alerts on a subject such as `stream games`, `games.purchase` or
    `games__gold.rebuild`.
    """
    words = [word for word in _SEPARATORS.split(subject) if word]
    namespace, separator, _ = subject.partition(" ")
    if separator and namespace in catalog.namespaces:
        # The subject is an erasure request. Readers of the erasure DAG see its alerts.
        return get_operation("erase").dag_id(namespace)
    pipeline = pipeline_of(catalog, subject)
    if pipeline and words[0] != "relay":
        return stream_dag_id(pipeline, group_of(catalog, pipeline))
    if words and split_dag_id(words[0])[1] == "relay":
        return words[0]
    if len(words) >= 2 and words[0] in ("relay", "remediation", "feeds"):
        return dag_id(words[1], words[0])
    return HEALTH_DAG


_VERDICT_ALERTS: Final = verdict_alerts()
SUSPENDED, EXHAUSTED, SILENT = "TABLE_SUSPENDED", "RESTARTS_EXHAUSTED", "HEALTH_SILENT"
RULE_WAITING: Final = "RULE_UNKNOWN"
UNREADABLE: Final = "HEARTBEAT_UNREADABLE"
#: Alerts that are listed in addition to a stream's verdict, unless the verdict has this cause.
_SEPARATE_ALERTS: Final = {"DATA_LOSS_NEAR": "SOURCE_EXPIRES", "ROWS_QUARANTINED": "ROWS_QUARANTINED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIssue:
    """An issue that needs a person, with its observation and next step.

    The time `since` is None until the first health check has seen the issue.
    """

    cause: str
    subject: str
    severity: str
    since: datetime | None
    detail: str
    next_step: str
    pipeline: str = ""


def open_issues(
    context: PageContext, reports: list[Report], verdicts: Mapping[str, Verdict], *, pipeline: str = ""
) -> list[OpenIssue]:
    """Returns unhealthy verdicts, then other open alerts that need a person, most severe first.

    Args:
        verdicts: the verdicts of the health check, by subject.
        pipeline: only alerts of this pipeline.
    """
    issues: list[OpenIssue] = [] if pipeline else list(_silent_health_check(context))
    is_checked = not issues and health_checked_at(context) is not None
    stored = [alert for alert in _open_alerts(context) if not (is_checked and alert.cause == SILENT)]
    stored = [alert for alert in stored if not any(_is_over(item, alert) for item in reports)]
    shown = {(SILENT, need.subject) for need in issues}
    for item in reports:
        if item.verdict.is_unhealthy and not is_storage_outage(context, item):
            same = [alert for alert in stored if _is_same_issue(item, alert)]
            shown |= {(alert.cause, alert.subject) for alert in same}
            issues += _verdict_issues(item, verdicts, same)
    waiting: dict[str, list[Alert]] = {}
    for alert in stored:
        owner = pipeline_of(context.catalog, alert.subject)
        if (pipeline and owner != pipeline) or (alert.cause, alert.subject) in shown:
            continue
        if alert.cause == RULE_WAITING and owner:
            waiting.setdefault(owner, []).append(alert)
        else:
            issues.append(_alert_issue(context.catalog, alert))
    issues += [_waiting_issue(context.catalog, owner, waits) for owner, waits in waiting.items()]
    return sorted(issues, key=lambda need: (-severity_rank(need.severity), *_kind_rank(need.cause), need.subject))


def _kind_rank(cause: str) -> tuple[bool, str]:
    """Returns the sort key of a cause: streams and jobs before rules."""
    return cause.startswith("RULE_"), cause


def unhealthy_since(item: Report, verdicts: Mapping[str, Verdict]) -> datetime | None:
    """Returns the start of the verdict; None if the health check has not recorded it yet."""
    return item.verdict.since if item.subject.key in verdicts else None


def health_checked_at(context: PageContext) -> datetime | None:
    """Returns the time of the last health check; None if there was none, or if the person may not see it."""
    if not context.person.may_read(HEALTH_DAG):
        return None
    try:
        stored = context.objects.get(paths.health_check())
        return parse_instant(json.loads(stored.data)["written_at"]) if stored else None
    except (DeltaworksError, ValueError, KeyError, TypeError):
        return None


def severity_rank(severity: str) -> int:
    """Returns the rank of a severity; unknown ones have the lowest."""
    severities = [str(one) for one in SEVERITIES]
    return severities.index(severity) if severity in severities else -1


def _silent_health_check(context: PageContext) -> Iterator[OpenIssue]:
    """Yields an issue if the health check's own heartbeat is stale.

    It does not rely on the alert, since the process that raises the alert may be down too.
    """
    ran_at = health_checked_at(context)
    if ran_at is None or context.now - ran_at <= timedelta(seconds=context.catalog.environment.alerts.deadman_seconds):
        return
    yield OpenIssue(
        cause=SILENT,
        subject=HEALTH_DAG,
        severity=catalog().alerts[SILENT].severity,
        since=ran_at,
        detail="The health check is not running. Streams may continue, but no alerts are raised or sent.",
        next_step=next_step_for(SILENT),
    )


def is_storage_outage(context: PageContext, item: Report) -> bool:
    """Returns whether a verdict says only that the storage does not answer, which the page's banner reports already."""
    return bool(context.objects.problem) and item.verdict.cause == UNREADABLE


def _is_same_issue(item: Report, alert: Alert) -> bool:
    """Returns whether an alert belongs to the issue of the verdict, with which it is shown as one."""
    subject, cause = item.subject, item.verdict.cause
    if alert.subject in (f"{subject.kind} {subject.name}", f"{subject.kind} {subject.argument}"):
        if alert.cause in _SEPARATE_ALERTS:
            return cause == _SEPARATE_ALERTS[alert.cause]
        return alert.cause in _VERDICT_ALERTS or alert.cause == EXHAUSTED
    is_table_alert = cause == SUSPENDED == alert.cause
    return is_table_alert and alert.subject in {f"{subject.name}.{held.get('table')}" for held in _suspended(item)}


def _is_over(item: Report, alert: Alert) -> bool:
    """Returns whether an alert reports a verdict that no longer holds, and that the next health check resolves.

    The page judges the process itself. Such an alert would contradict the state "healthy".
    """
    is_well = item.verdict.state in ("healthy", "lagging", "stopped")
    return is_well and alert.cause in _VERDICT_ALERTS and _is_same_issue(item, alert)


def _suspended(item: Report) -> list[dict[str, object]]:
    held = item.heartbeat.held if item.heartbeat else ()
    return [one for one in held if one.get("reason") == "suspended"]


def _verdict_issues(item: Report, verdicts: Mapping[str, Verdict], same: list[Alert]) -> Iterator[OpenIssue]:
    """Yields the issue of a verdict; one for each suspended table, since each is resumed separately."""
    verdict, subject = item.verdict, item.subject
    severity, pipeline = (
        catalog().alerts[alert_for_verdict(verdict.cause)].severity,
        subject.name if subject.kind == "stream" else "",
    )
    if verdict.cause == SUSPENDED:
        for held in _suspended(item):
            table = held.get("table")
            failed = f"[{held.get('condition')}] {held.get('message')}"
            yield OpenIssue(
                cause=SUSPENDED,
                subject=f"{subject.name}.{table}",
                severity=severity,
                since=parse_instant(held.get("at")),
                detail=f"Commits wait since batch {held.get('since_batch')}: {failed}",
                next_step=f"Repair the table as the condition says, then run `deltaworks tables resume {subject.name} "
                f"{table}`. Nothing is lost meanwhile; the other tables continue.",
                pipeline=pipeline,
            )
        return
    raised = [alert.state.since for alert in same if alert.state.since is not None]
    exhausted = [alert.summary for alert in same if alert.cause == EXHAUSTED]
    yield OpenIssue(
        cause=verdict.cause,
        subject=f"{subject.kind} {subject.name}",
        severity=severity,
        since=unhealthy_since(item, verdicts) or min(raised, default=None),
        detail=" ".join((verdict.detail, *exhausted)),
        next_step=verdict.next_step or next_step_for(verdict.cause),
        pipeline=pipeline,
    )


def _alert_issue(catalog: Catalog, alert: Alert) -> OpenIssue:
    return OpenIssue(
        cause=alert.cause,
        subject=alert.subject,
        severity=alert.state.severity,
        since=alert.state.since,
        detail=alert_observation(alert),
        next_step=alert_next_step(alert),
        pipeline=pipeline_of(catalog, alert.subject),
    )


def _waiting_issue(catalog: Catalog, pipeline: str, waits: list[Alert]) -> OpenIssue:
    """Returns the rules of a pipeline that wait for data as one issue: mostly, one stream delays all of them."""
    if len(waits) == 1:
        return _alert_issue(catalog, waits[0])
    first = min(waits, key=lambda alert: (str(alert.state.since), alert.subject))
    names = ", ".join(sorted(alert.subject.removeprefix(f"{pipeline}.") for alert in waits))
    return OpenIssue(
        cause=RULE_WAITING,
        subject=pipeline,
        severity=max((alert.state.severity for alert in waits), key=severity_rank),
        since=first.state.since,
        detail=f"{len(waits)} rules of {pipeline} wait for data: {names}. {alert_observation(first)}",
        next_step=f"{alert_next_step(first)} `deltaworks alerts rules {pipeline}` shows what each of them waits for.",
        pipeline=pipeline,
    )


def alert_observation(alert: Alert) -> str:
    """Returns the observation of an alert. The stored text also has the next step, which is removed."""
    return alert.summary.removesuffix(f" Next: {alert_next_step(alert)}")


def alert_next_step(alert: Alert) -> str:
    """Returns the next step of an alert: its own, or the default of its cause."""
    return str(alert.detail.get("next_step") or "") or next_step_for(alert.cause)


def _open_alerts(context: PageContext) -> list[Alert]:
    try:
        keys = context.objects.list(paths.alerts("state/"))
        context.objects.fetch(keys)
        stored = [alert for alert in alerts(context.objects) if alert.state.is_open]
        # Those that are shown may have ended since their copy was read.
        shown = [alert_key(alert.cause, alert.subject) for alert in stored]
        context.objects.fetch(shown, ttl_seconds=FAST_TTL_SECONDS)
        stored = [alert for alert in alerts(context.objects) if alert.state.is_open]
    except DeltaworksError:
        return []
    return [alert for alert in stored if context.person.may_read(alert_dag(context.catalog, alert.subject))]
