"""Channel `log`: writes to the log of the process that sends notifications."""

from __future__ import annotations

import logging

from deltaworks.alerts.channels.base import Send
from deltaworks.alerts.notification import Notification
from deltaworks.specs.environment import LogChannelSpec
from deltaworks.specs.storage import AwsSpec

log = logging.getLogger("deltaworks.alerts")
_LEVELS = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def log_sender(_spec: LogChannelSpec, _messaging: AwsSpec) -> Send:
    """Creates the sender: one line per notification, at the log level of its severity."""

    def send(notification: Notification) -> None:
        log.log(_LEVELS[notification.severity], "%s: %s", notification.title, notification.text.replace("\n", " "))

    return send
