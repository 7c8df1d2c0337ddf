"""The page of alerts: firing, silenced and recently resolved ones."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime

from deltaworks.alerts.raising import Alert
from deltaworks.alerts.raising import alerts as stored_alerts
from deltaworks.alerts.silences import Silence, active_silence, subject_words
from deltaworks.alerts.silences import silences as stored_silences
from deltaworks.console.page_context import PageContext, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.pages.open_issues import alert_dag, alert_next_step, alert_observation, severity_rank
from deltaworks.console.paging import Rows, page_rows
from deltaworks.control import paths
from deltaworks.control.paths import silences as silences_folder
from deltaworks.errors import DeltaworksError
from deltaworks.errors.conditions import catalog
from deltaworks.specs.dag_ids import HEALTH_DAG, dag_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRow:
    """A silence with its author, reason and end."""

    id: str
    pipeline: str
    cause: str
    subject: str
    by: str
    reason: str
    at: datetime | None
    until: datetime | None
    active: bool
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """An alert with the time of its last notification and, if it is silenced, the silence that suppresses
    further ones."""

    cause: str
    subject: str
    severity: str
    open: bool
    began_at: datetime | None
    since: datetime | None
    notified_at: datetime | None
    summary: str
    next_step: str
    meaning: str
    changes: int
    silence: SilenceRow | None
    pipeline: str
    command: str
    may_silence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsView:
    """Content of the alerts page.

    Notifications that no channel has accepted yet are counted as `waiting_notifications`; None if the person may not
    see them.
    """

    listed: Rows[AlertRow]
    firing: int
    silenced: int
    silences: tuple[SilenceRow, ...]
    waiting_notifications: int | None
    channels: tuple[tuple[str, str], ...]
    show: str
    problem: str

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{self.firing} alerts fire, {self.silenced} are silenced"


#: Severity is negated: rows are sorted in ascending order.
_SORT_KEYS = {
    "severity": lambda row: (-severity_rank(row.severity), row.cause, row.subject),
    "cause": lambda row: (row.cause, row.subject),
    "subject": lambda row: row.subject,
    "since": lambda row: row.since,
}
TABS = ("firing", "silenced", "history")


def view(context: PageContext) -> AlertsView:
    """Returns the alerts the person may see; `?show=` is one of TABS."""
    alerts, problem = _alerts(context)
    silences = _silences(context)
    rows = [_row(context, alert, silences) for alert in alerts]
    by_kind = {
        "firing": [row for row in rows if row.open and row.silence is None],
        "silenced": [row for row in rows if row.open and row.silence is not None],
        "history": [row for row in rows if not row.open],
    }
    show = context.query.get("show", "")
    show = show if show in TABS else "firing"
    history = show == "history"
    return AlertsView(
        listed=page_rows(
            context,
            by_kind[show],
            keys=_SORT_KEYS,
            sort="since" if history else "severity",
            descending=history,
            text=lambda row: f"{row.severity} {row.cause} {row.subject} {row.summary}",
        ),
        firing=len(by_kind["firing"]),
        silenced=len(by_kind["silenced"]),
        silences=tuple(_silence_row(context, one) for one in silences),
        waiting_notifications=_count_waiting(context),
        channels=tuple((channel.name, channel.kind) for channel in context.catalog.environment.alerts.channels),
        show=show,
        problem=problem,
    )


def _alerts(context: PageContext) -> tuple[list[Alert], str]:
    try:
        context.objects.fetch(context.objects.list(paths.alerts("state/")))
        return [alert for alert in stored_alerts(context.objects) if _may_see(context, alert.subject)], ""
    except DeltaworksError as error:
        return [], error.message


def _may_see(context: PageContext, subject: str) -> bool:
    return context.person.may_read(alert_dag(context.catalog, subject))


def _silences(context: PageContext) -> list[Silence]:
    try:
        context.objects.fetch(context.objects.list(silences_folder()))
        return [one for one in stored_silences(context.objects) if context.may_read(one.pipeline)]
    except DeltaworksError:
        return []


def _silence_row(context: PageContext, one: Silence) -> SilenceRow:
    words = ["deltaworks", "alerts", "silence", one.pipeline, one.cause, "--subject", one.subject, "--end"]
    return SilenceRow(
        id=one.id,
        pipeline=one.pipeline,
        cause=one.cause,
        subject=one.subject,
        by=one.by,
        reason=one.reason,
        at=parse_instant(one.at),
        until=parse_instant(one.until),
        active=one.is_active_at(context.now),
        command=shlex.join(words),
    )


def _row(context: PageContext, alert: Alert, silences: list[Silence]) -> AlertRow:
    state, kind = alert.state, catalog().alerts.get(alert.cause)
    pipeline = _silence_pipeline(context, alert.subject)
    silence = active_silence(silences, cause=alert.cause, subject=alert.subject, now=context.now)
    words = ["deltaworks", "alerts", "silence", pipeline, alert.cause, "--subject", alert.subject, "--hours", "1"]
    return AlertRow(
        cause=alert.cause,
        subject=alert.subject,
        severity=state.severity,
        open=state.is_open,
        began_at=state.began_at or (state.since if state.is_open else None),
        since=state.since,
        notified_at=max(state.notification_times, default=state.last_notified_at),
        summary=alert_observation(alert),
        next_step=alert_next_step(alert),
        meaning="" if kind is None else kind.meaning,
        changes=state.changes,
        silence=None if silence is None else _silence_row(context, silence),
        pipeline=pipeline,
        command=shlex.join([*words, "--reason", "WHY"]) if pipeline and state.is_open else "",
        may_silence=bool(pipeline) and context.person.may_start(dag_id(pipeline, "silence_alert")),
    )


def _silence_pipeline(context: PageContext, subject: str) -> str:
    """Returns the pipeline whose silences apply to a subject; empty if the subject belongs to no pipeline."""
    return next((word for word in subject_words(subject) if context.catalog.declares("pipeline", word)), "")


def _count_waiting(context: PageContext) -> int | None:
    """Returns the number of waiting notifications; None for people who may not read the health DAG.

    Notifications are counted over all pipelines, so access to one pipeline is not sufficient.
    """
    if not context.person.may_read(HEALTH_DAG):
        return None
    try:
        return len(context.objects.list(paths.alerts("spool/")))
    except DeltaworksError:
        return None


PAGE = Page(name="alerts", route="/alerts", title="Alerts", view=view, menu="Alerts")
