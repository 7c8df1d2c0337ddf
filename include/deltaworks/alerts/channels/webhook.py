"""Channel `webhook`: posts each notification as JSON to a URL."""

from __future__ import annotations

from deltaworks.alerts.channels.base import Send, rejection_error
from deltaworks.alerts.notification import Notification
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment import WebhookChannelSpec
from deltaworks.specs.storage import AwsSpec


def webhook_sender(spec: WebhookChannelSpec, _messaging: AwsSpec) -> Send:
    """Creates the sender. Its errors never contain the URL, which may be a secret."""

    def send(notification: Notification) -> None:
        import httpx

        headers = {"X-Deltaworks-Notification": notification.id}
        if spec.token is not None:
            headers["Authorization"] = f"Bearer {spec.token.resolve()}"
        try:
            response = httpx.post(
                resolve_text(spec.url), json=notification.record(), headers=headers, timeout=spec.timeout_seconds
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise rejection_error(spec.name, type(error).__name__) from error
        if response.status_code >= 300:
            raise rejection_error(spec.name, f"it answered {response.status_code}")

    return send
