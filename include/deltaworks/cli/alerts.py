"""`deltaworks alerts` and `deltaworks deadman`: open alerts, rules, silences, channels, and the dead man's switch."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from deltaworks.alerts.raising import Alert, alerts, flush_alerts
from deltaworks.alerts.silences import silences as all_silences
from deltaworks.cli.context import apply_settings, catalog, lake_objects
from deltaworks.cli.output import listing_command, print_line
from deltaworks.cli.rules import backtest, rules
from deltaworks.control.clock import utc_now
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import open_objects
from deltaworks.errors import TransientError

app = typer.Typer(no_args_is_help=True)


@app.command()
@listing_command
def show(
    include_ended: bool = typer.Option(False, "--all", help="Include recently ended ones."),
) -> list[str | Listing]:
    """List open alerts, the most severe first."""
    selected = [alert for alert in alerts(lake_objects()) if include_ended or alert.state.is_open]
    return [alert_listing(selected)] if selected else ["No alert is open.", alert_listing(())]


def alert_listing(selected: Iterable[Alert]) -> Listing:
    """Returns a listing of alerts, open and most severe first."""
    columns = ("severity", "cause", "subject", "since", "summary", "runbook")
    listing = Listing(columns, title="alerts open", details=("summary",), minor=("runbook",))
    for alert in sorted(selected, key=lambda alert: (not alert.state.is_open, alert.state.severity, alert.cause)):
        since = alert.state.since
        severity = alert.state.severity if alert.state.is_open else "resolved"
        at = Cell(since, f"{since:%Y-%m-%d %H:%M}" if since else "")
        listing.add(severity, alert.cause, alert.subject, at, alert.summary, alert.runbook)
    return listing


app.command()(rules)
app.command()(backtest)


@app.command()
@listing_command
def silences(
    include_ended: bool = typer.Option(False, "--all", help="Include recently ended ones."),
) -> list[str | Listing]:
    """List silences. Create one with `alerts silence`."""
    now = utc_now()
    selected = [one for one in all_silences(lake_objects()) if include_ended or one.is_active_at(now)]
    listing = Listing(("pipeline", "cause", "subject", "until", "by", "reason", "state"), title="silences")
    for one in selected:
        state = "active" if one.is_active_at(now) else "ended"
        listing.add(one.pipeline, one.cause, one.subject, one.until, one.by, one.reason, state)
    return [listing] if selected else ["No alert is silenced.", listing]


@app.command()
def send() -> None:
    """Send pending notifications now, including suppressed ones that are still true."""
    from deltaworks.alerts.channels import project_channels
    from deltaworks.alerts.sending import send_notifications

    project = catalog()
    objects = open_objects(project.environment.lake)
    flush_alerts(objects)
    result = send_notifications(objects, project_channels(project))
    print_line(f"Sent {result.sent}, waiting {result.waiting}, abandoned {result.abandoned}.")
    if result.failing_channels:
        raise TransientError(
            "CHANNEL_FAILED",
            f"These channels accept no notifications: {', '.join(result.failing_channels)}.",
            hint="Run `deltaworks alerts check` for details.",
        )


@app.command()
def check(
    should_send: bool = typer.Option(False, "--send", help="Send a test alert on each channel, and its end."),
) -> None:
    """Check every channel: secrets, mail servers, topics, confirmed subscriptions, dead-letter queues.

    If the test of `--send` succeeds on a channel, its pending notifications are sent at the next health check.
    """
    from deltaworks.alerts.channels import channel_problems, project_channels
    from deltaworks.alerts.notification import sample_notifications
    from deltaworks.alerts.sending import retry_now
    from deltaworks.control.health.processes import channel_warning

    project = catalog()
    environment, problem_count = project.environment, 0
    if warning := channel_warning(environment.alerts):
        problem_count += 1
        print_line(warning)
    for channel in project_channels(project):
        problems = channel_problems(channel, environment.messaging)
        if should_send and not any(problem.is_blocking for problem in problems):
            for sample in sample_notifications(ends=channel.spec.resolved):
                channel.send(sample)
            if retry_now(open_objects(environment.lake), channel.name):
                print_line(f"{channel.name}: accepts notifications again; pending ones are sent within a minute")
        for problem in problems:
            problem_count += 1
            print_line(f"{channel.name}: {problem.text}")
        if not problems:
            print_line(f"{channel.name}: ok")
    if problem_count:
        raise typer.Exit(1)


def deadman() -> None:
    """Alert if the health check has not run for too long, and exit with 21. For cron, a timer or a CronJob."""
    from deltaworks.alerts.deadman import open_deadman

    apply_settings()
    health_check = open_deadman().check()
    if health_check.state == "unreadable":
        raise TransientError("CONTROL_UNREADABLE", health_check.error)
    if health_check.state == "silent":
        raise TransientError("HEALTH_SILENT", f"The health check has not run for {health_check.silent_seconds:.0f} s.")
    print_line(f"The health check ran {health_check.silent_seconds:.0f} s ago.")
