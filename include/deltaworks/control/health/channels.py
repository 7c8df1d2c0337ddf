"""Whether anybody hears of alerts: a lake that nobody is told about dies unseen.

This is no alert, which would need the channel that is missing: every health run, the progress page and `status` say it.
"""

from __future__ import annotations

from deltaworks.control.health.limits import Finding
from deltaworks.specs.environment import WEBHOOK_VARIABLE, AlertsSpec, LogChannelSpec

#: What to write, in one line.
CHANNEL_SETUP_HINT = (
    f"set {WEBHOOK_VARIABLE} to an address that takes alerts as JSON, or declare a channel of kind webhook or sns "
    "under `alerts` of the environment; `deltaworks alerts check --send` tries it"
)


def channel_finding(alerts: AlertsSpec) -> Finding | None:
    """What is wrong where every channel is a log, which nobody reads in time; None where one reaches people."""
    if any(not isinstance(channel, LogChannelSpec) for channel in alerts.channels):
        return None
    return Finding(
        "lagging", "ALERTS_UNDELIVERED", "no alert reaches a person: the log is the only channel.", CHANNEL_SETUP_HINT
    )


def channel_warning(alerts: AlertsSpec) -> str:
    """The same as one sentence for people; empty where nothing is wrong."""
    finding = channel_finding(alerts)
    return f"{finding.cause}: {finding.detail} Next: {finding.next_step}." if finding is not None else ""
