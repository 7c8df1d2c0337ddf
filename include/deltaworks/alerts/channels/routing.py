"""Decides which channels get a notification: by the routes of the environment and by each channel's severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks.alerts.channels.message import owner_of, subject_names
from deltaworks.alerts.notification import Notification
from deltaworks.errors import Severity
from deltaworks.errors.conditions import severity_rank
from deltaworks.specs.alert_channels import AlertsSpec, ChannelSpec

#: Is sent on every channel: the route of a failing channel may lead to that channel alone.
CHANNEL_FAILING = "CHANNEL_FAILING"


@dataclass(frozen=True, slots=True)
class Router:
    """The routes of an environment, with the owner of each process by name."""

    alerts: AlertsSpec = field(default_factory=AlertsSpec.defaults)
    owners: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, channel: ChannelSpec, notification: Notification) -> bool:
        """Returns whether a notification is sent on a channel.

        The end of an alert goes to the channels of every severity that was notified since the alert was raised.
        """
        if notification.kind != "resolved":
            return self._accepts_severity(channel, notification, notification.severity)
        severities = notification.notified_severities or (notification.severity,)
        return channel.resolved and any(
            self._accepts_severity(channel, notification, severity) for severity in severities
        )

    def _accepts_severity(self, channel: ChannelSpec, notification: Notification, severity: Severity) -> bool:
        if notification.cause == CHANNEL_FAILING:
            return severity_rank(severity) >= severity_rank(channel.min_severity)
        detail = notification.detail
        return self.alerts.sends_to(
            channel,
            severity=severity,
            owner=owner_of(notification, self.owners),
            pipelines=[name for name in subject_names(notification) if name in self.owners],
            rule=f"{detail['pipeline']}.{detail['rule']}" if detail.get("pipeline") and detail.get("rule") else "",
        )
