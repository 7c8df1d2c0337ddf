"""Specs of alert channels, and of the routes that decide which alerts go to which channels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from deltaworks.errors import Severity
from deltaworks.errors.conditions import severity_rank
from deltaworks.specs.base import (
    KeyPath,
    Name,
    Problem,
    SecretReference,
    Spec,
    TextOrReference,
    raise_problems,
    suggest_name,
)

#: Hosts of addresses that expect a chat's own format instead of plain JSON, by their ends.
_CHAT_HOSTS = {"hooks.slack.com": "slack", "logic.azure.com": "teams", "powerplatform.com": "teams"}


class ChannelSpec(Spec):
    """Settings that all alert channels have. `resolved: false` omits notifications of resolved alerts."""

    name: Name
    min_severity: Severity = "warning"
    resolved: bool = True


class SnsChannelSpec(ChannelSpec):
    """An SNS topic, reached with the environment's `messaging` or with an Airflow connection.

    On a FIFO topic (`.fifo`) repeated notifications are deduplicated. Undeliverable messages of subscriptions go to
    `dead_letters`; `deltaworks alerts check` lists subscriptions without a dead-letter queue.
    """

    kind: Literal["sns"]
    topic: TextOrReference
    dead_letters: TextOrReference | None = Field(default=None, description="ARN of an SQS queue")
    aws_conn_id: str | None = Field(default=None, description="Airflow connection, if Airflow sends")


class LogChannelSpec(ChannelSpec):
    """The log of the sending process."""

    kind: Literal["log"]


class _HttpChannelSpec(ChannelSpec):
    """A channel that is reached by POST requests."""

    timeout_seconds: float = Field(default=5.0, gt=0, le=60, description="limit of each step of a request")


class WebhookChannelSpec(_HttpChannelSpec):
    """A URL that receives each notification as JSON by POST."""

    kind: Literal["webhook"]
    url: TextOrReference
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")


class SlackChannelSpec(_HttpChannelSpec):
    """An incoming webhook of Slack, whose URL is a secret."""

    kind: Literal["slack"]
    url: SecretReference = Field(description="URL of the incoming webhook")


class TeamsChannelSpec(_HttpChannelSpec):
    """A workflow of Microsoft Teams that posts an adaptive card for each webhook request. Its URL is a secret."""

    kind: Literal["teams"]
    url: SecretReference = Field(description="URL of the workflow")


class PagerDutyChannelSpec(_HttpChannelSpec):
    """A service of PagerDuty, by an integration for Events API v2."""

    kind: Literal["pagerduty"]
    routing_key: SecretReference = Field(description="integration key of the service")
    url: TextOrReference = Field(
        default="https://events.pagerduty.com", description="https://events.eu.pagerduty.com for accounts in the EU"
    )


class AlertmanagerChannelSpec(_HttpChannelSpec):
    """An Alertmanager of Prometheus, by its API v2. Declare one channel per member of a cluster."""

    kind: Literal["alertmanager"]
    url: TextOrReference = Field(description="base URL, such as http://alertmanager:9093")
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")


class EmailChannelSpec(ChannelSpec):
    """E-mail as plain text, by SMTP."""

    kind: Literal["email"]
    host: TextOrReference
    port: int = Field(default=587, ge=1, le=65_535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: TextOrReference | None = None
    password: SecretReference | None = None
    sender: str = Field(pattern=r"^[^@\s<>,]+@[^@\s<>,]+$", description="address of the sender")
    recipients: tuple[Annotated[str, Field(pattern=r"^[^@\s<>,]+@[^@\s<>,]+$")], ...] = Field(min_length=1)
    timeout_seconds: float = Field(default=10.0, gt=0, le=60, description="limit of each step of the dialog")

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            key = "username" if self.username is not None else "password"
            raise_problems([((key,), "a login needs both: username, and password: env:NAME")])
        if self.password is not None and self.security == "none":
            text = "a password is sent over an encrypted connection only: write starttls or tls"
            raise_problems([(("security",), text)])
        return self


AnyChannelSpec = Annotated[
    SnsChannelSpec
    | WebhookChannelSpec
    | SlackChannelSpec
    | TeamsChannelSpec
    | PagerDutyChannelSpec
    | AlertmanagerChannelSpec
    | EmailChannelSpec
    | LogChannelSpec,
    Field(discriminator="kind"),
]


class RouteSpec(Spec):
    """The channels of some alerts. All given conditions must hold; without conditions every alert matches.

    `pipelines` are names of pipelines, relays, collectors and remediations, and `rules` are `pipeline.rule`. Both may
    be globs: `*` and `?` match any characters.
    """

    owners: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = ()
    channels: tuple[str, ...] = Field(min_length=1)

    def matches(self, *, severity: Severity, owner: str, pipelines: Iterable[str], rule: str) -> bool:
        """Returns whether an alert meets all conditions.

        Args:
            owner: owner of the alert's pipeline; empty if unknown.
            pipelines: names in the alert's subject.
            rule: the alert's rule, as `pipeline.rule`; empty if it has none.
        """
        return (
            (not self.severities or severity in self.severities)
            and (not self.owners or owner in self.owners)
            and (not self.pipelines or any(fnmatchcase(name, glob) for name in pipelines for glob in self.pipelines))
            and (not self.rules or any(fnmatchcase(rule, glob) for glob in self.rules))
        )

    @property
    def is_conditional(self) -> bool:
        """Whether some alerts do not match."""
        return bool(self.owners or self.pipelines or self.rules or self.severities)


class AlertsSpec(Spec):
    """Alert channels, each with alerts from its `min_severity` upwards, and routes between them.

    The first route that matches an alert decides. A channel that no route names gets every alert.
    """

    channels: tuple[AnyChannelSpec, ...] = (
        LogChannelSpec.model_construct(kind="log", name="log", min_severity="info"),
    )
    routes: tuple[RouteSpec, ...] = ()
    deadman_seconds: float = Field(
        default=300, ge=60, description="age of the health check's heartbeat from which an alert is raised"
    )
    docs_url: str = Field(default="", description="base URL of the published docs, for links to runbooks")

    @field_validator("channels")
    @classmethod
    def _check_unique_names(cls, channels: tuple[AnyChannelSpec, ...]) -> tuple[AnyChannelSpec, ...]:
        names = [channel.name for channel in channels]
        if len(set(names)) < len(names):
            raise ValueError("two channels have the same name")
        return channels

    @model_validator(mode="after")
    def _check_routes(self) -> Self:
        raise_problems([*self._unknown_channels(), *self._unreachable_routes()])
        return self

    def sends_to(
        self, channel: ChannelSpec, *, severity: Severity, owner: str, pipelines: Collection[str], rule: str
    ) -> bool:
        """Returns whether an alert goes to a channel, by its severity and the first route that matches.

        The arguments are those of `RouteSpec.matches`.
        """
        if severity_rank(severity) < severity_rank(channel.min_severity):
            return False
        if channel.name not in self.routed_channels:
            return True
        matching = (
            route
            for route in self.routes
            if route.matches(severity=severity, owner=owner, pipelines=pipelines, rule=rule)
        )
        first = next(matching, None)
        return first is not None and channel.name in first.channels

    @property
    def channel_kinds(self) -> dict[str, str]:
        """Kinds of the channels by name."""
        return {channel.name: channel.kind for channel in self.channels}

    @property
    def routed_channels(self) -> frozenset[str]:
        """Names of the channels that routes name."""
        return frozenset(name for route in self.routes for name in route.channels)

    def _unknown_channels(self) -> Iterator[Problem]:
        for index, route in enumerate(self.routes):
            for position, name in enumerate(route.channels):
                if name not in self.channel_kinds:
                    text = f"there is no channel {name!r} below alerts.channels"
                    key_path: KeyPath = ("routes", index, "channels", position)
                    yield key_path, f"{text}; {suggest_name(name, self.channel_kinds)}"

    def _unreachable_routes(self) -> Iterator[Problem]:
        """Yields routes behind one that takes every alert, and a last route that does not."""
        for index, route in enumerate(self.routes[:-1]):
            if not route.is_conditional:
                yield ("routes", index), "it takes every alert, so no later route is used: write it last"
        if self.routes and self.routes[-1].is_conditional:
            text = "alerts that match no route would reach no one: end with a route of `channels` alone"
            yield ("routes", len(self.routes) - 1), text


def webhook_channel(name: str, url: str, reference: str) -> AnyChannelSpec:
    """Returns a channel for an address outside the specs: of the chat that its host belongs to, otherwise a webhook.

    Args:
        url: the address, which is used for its host alone.
        reference: where the address is read when a notification is sent, such as `env:NAME`.
    """
    host = urlsplit(url).hostname or ""
    kind = next((kind for end, kind in _CHAT_HOSTS.items() if host == end or host.endswith(f".{end}")), "webhook")
    declared: dict[str, Any] = {"kind": kind, "name": name, "url": reference}
    if kind == "slack":
        return SlackChannelSpec.model_validate(declared)
    return (TeamsChannelSpec if kind == "teams" else WebhookChannelSpec).model_validate(declared)
