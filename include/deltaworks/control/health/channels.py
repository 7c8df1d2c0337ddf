"""Checks that alerts reach a person.

The result is not an alert, because no channel could deliver it. Instead, every health run, the overview page and
`status` report it.
"""

from __future__ import annotations

from deltaworks.control.health.limits import Finding
from deltaworks.specs.environment import WEBHOOK_VARIABLE, AlertsSpec, LogChannelSpec

#: The setting to add, in one line.
CHANNEL_SETUP_HINT = (
    f"set {WEBHOOK_VARIABLE} to a URL that accepts alerts as JSON, or declare a channel of kind webhook or sns "
    "under `alerts` of the environment; test it with `deltaworks alerts check --send`"
)


def channel_finding(alerts: AlertsSpec) -> Finding | None:
    """Returns a finding if the log is the only alert channel; None if another channel is declared."""
    if any(not isinstance(channel, LogChannelSpec) for channel in alerts.channels):
        return None
    return Finding(
        "lagging", "ALERTS_UNDELIVERED", "Alerts reach no person: the log is the only channel.", CHANNEL_SETUP_HINT
    )


def channel_warning(alerts: AlertsSpec) -> str:
    """Returns the finding as one sentence; empty if there is none."""
    finding = channel_finding(alerts)
    return f"{finding.cause}: {finding.detail} Next: {finding.next_step}." if finding is not None else ""
