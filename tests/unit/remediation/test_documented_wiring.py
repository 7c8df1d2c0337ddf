"""The remediation and the Lambdas of the how-to pages run as they stand there, from the alert to the record of DNS."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deltaworks.alerts.channels import MessageContext, project_channels
from deltaworks.alerts.channels.senders import sns_message
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.alerts.sending import send_notifications
from deltaworks.control.objects import open_objects
from deltaworks.control.records.remediation import RemediationRecords
from deltaworks.remediation.process import RemediationProcess, find_remediation
from deltaworks.rules.subjects import FIRING, RuleDetail, subject_of
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.testing import local_storage, present
from tests.http_server import HttpAnswer, HttpRequest, http_server
from tests.unit.alerts.aws_harness import Aws

HOW_TO = PROJECT_ROOT / "docs" / "how-to"
TOKEN = "t" * 32


def documented_code(page: str, mark: str) -> str:
    """Returns the code block below a mark of a how-to page."""
    text = (HOW_TO / page).read_text()
    found = re.search(rf"<!-- {re.escape(mark)}.*? -->\n```\w+\n(.*?)```", text, re.DOTALL)
    return present(found)[1]


def documented_project(root: Path, aws: Aws, *, dry_run: bool) -> Catalog:
    """Returns the shipped pipeline of CDN logs, in an environment with the documented remediation."""
    example = documented_code("remediate.md", "example: remediation")
    assert "dry_run: true" in example, "nothing is moved unless someone says so"
    environment = f"""\
environment: local
lake: {{root: "file://{root}/lake"}}
landing: {{root: "file://{root}/landing"}}
messaging: {{endpoint: "{aws.endpoint}", access_key: env:TEST_ACCESS_KEY, secret_key: env:TEST_SECRET_KEY}}
{example if dry_run else example.replace("dry_run: true", "dry_run: false")}"""
    folder = root / "project" / "include"
    (folder / "environments").mkdir(parents=True)
    (folder / "environments" / "local.yaml").write_text(environment)
    for name in ("relays", "pipelines/cdn_realtime"):
        shutil.copytree(PROJECT_ROOT / "include" / name, folder / name)
    return load_catalog("local", root=root / "project")


def documented_lambda(name: str) -> ModuleType:
    """Returns a Lambda's module, as AWS would import it."""
    module = ModuleType(f"lambda_{name}")
    exec(compile(documented_code("wire-a-lambda.md", f"lambda: {name}"), f"{name}.py", "exec"), module.__dict__)
    return module


@contextmanager
def function_url(handler: Any) -> Iterator[str]:
    """Serves a Lambda as its function URL does, with events of the payload format 2.0."""

    def invoke(request: HttpRequest) -> HttpAnswer:
        event = {
            "version": "2.0",
            "rawPath": request.path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "requestContext": {"http": {"method": request.method, "path": request.path}},
            "isBase64Encoded": False,
            "body": request.body.decode() or None,
        }
        response = handler(event, None)
        return response["statusCode"], response["body"].encode(), response["headers"]

    with http_server(invoke) as address:
        yield address


@pytest.fixture(autouse=True)
def lambda_environment(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that AWS sets for a function, towards the local server, and those of the page."""
    for name, value in {
        "AWS_ENDPOINT_URL": aws.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "TOKEN": TOKEN,
        "RECORD": "video.example.com",
        "TABLE": "open-episodes",
        "TRAFFIC_TOKEN": TOKEN,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def zone(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> str:
    """A hosted zone with a record for each network, of equal weights."""
    route53 = aws.client("route53")
    zone = str(route53.create_hosted_zone(Name="example.com", CallerReference=str(id(monkeypatch)))["HostedZone"]["Id"])
    for name in ("a", "b"):
        record = {
            "Name": "video.example.com",
            "Type": "CNAME",
            "SetIdentifier": name,
            "Weight": 1,
            "TTL": 60,
            "ResourceRecords": [{"Value": f"{name}.cdn.example.net"}],
        }
        changes = [{"Action": "CREATE", "ResourceRecordSet": record}]
        route53.change_resource_record_sets(HostedZoneId=zone, ChangeBatch={"Changes": changes})
    monkeypatch.setenv("ZONE", zone)
    return zone


def dns_weights(aws: Aws, zone: str) -> dict[str, int]:
    records = aws.client("route53").list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"]
    return {record["SetIdentifier"]: record["Weight"] for record in records if "SetIdentifier" in record}


def fire(catalog: Catalog, cdn: str) -> Notification:
    """Raises the alert of the documented rule, with the labels that the shipped pipeline declares."""
    spec = catalog.environment.remediations[0]
    pipeline, _, name = spec.rule.partition(".")
    rule = next(one for one in catalog.pipeline(pipeline).rules if one.name == name)
    labels = tuple(cdn if label == spec.label else "other" for label in rule.labels)
    named = dict(zip(rule.labels, labels, strict=True))
    subject = subject_of(pipeline, name, rule.labels, labels)
    detail = RuleDetail(pipeline=pipeline, rule=name, episode=f"{subject}@1", labels=named, label_sets=[named])
    return present(
        raise_alert(
            open_objects(catalog.environment.lake),
            cause=FIRING,
            subject=subject,
            summary="slow",
            severity=rule.severity,
            detail={**detail.as_dict(), "value": 300.0, "baseline": 100.0},
        )
    )


@pytest.mark.parametrize("dry_run", [True, False], ids=["as documented", "without dry run"])
def test_the_documented_remediation_shifts_the_weights_of_the_documented_lambda(
    tmp_path: Path, aws: Aws, zone: str, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    topic, queue = aws.topic(), aws.queue()
    aws.subscribe(topic, queue)
    monkeypatch.setenv("ALERTS_TOPIC", topic)
    monkeypatch.setenv("REMEDIATION_QUEUE_URL", queue)
    catalog = documented_project(tmp_path, aws, dry_run=dry_run)
    objects = open_objects(catalog.environment.lake)
    with function_url(documented_lambda("weights").handler) as url:
        monkeypatch.setenv("TRAFFIC_URL", url)
        notification = fire(catalog, "a")
        assert send_notifications(objects, project_channels(catalog)).failing_channels == ()
        RemediationProcess(catalog.environment, find_remediation(catalog, "shift_cdn")).run_once()

    record = present(RemediationRecords(objects).read(notification.id))
    assert record.state == ("dry_run" if dry_run else "called")
    assert record.before == {"a": 0.5, "b": 0.5}
    assert record.after == {"a": 0.3, "b": 0.7}
    assert dns_weights(aws, zone) == ({"a": 1, "b": 1} if dry_run else {"a": 60, "b": 140})


def test_the_lambda_moves_nothing_for_a_wrong_token_or_an_unknown_target(
    aws: Aws, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2

    with function_url(documented_lambda("weights").handler) as url:
        good, bad = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, "wrong"))
        statuses = [
            httpx2.get(url, headers=bad).status_code,
            httpx2.post(url, headers=bad, json={"weights": {"a": 1, "b": 0}}).status_code,
            httpx2.post(url, headers=good, json={"weights": {"a": 1}}).status_code,
            httpx2.post(url, headers=good, json={"weights": {"a": 2, "b": -1}}).status_code,
        ]
        weights = httpx2.get(url, headers=good).json()["weights"]

    assert statuses == [401, 401, 422, 422]
    assert weights == {"a": 0.5, "b": 0.5}
    assert dns_weights(aws, zone) == {"a": 1, "b": 1}


def test_the_documented_subscriber_keeps_open_episodes_and_removes_them(tmp_path: Path, aws: Aws) -> None:
    aws.client("dynamodb").create_table(
        TableName="open-episodes",
        KeySchema=[{"AttributeName": "episode", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "episode", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    handler = documented_lambda("alerts").handler

    def deliver(notification: Notification) -> list[str]:
        message = sns_message("topic", notification, MessageContext()).body
        for _ in range(2):  # SNS delivers at least once
            handler({"Records": [{"Sns": {"Message": message}}]}, None)
        items = aws.client("dynamodb").scan(TableName="open-episodes")["Items"]
        return [item["title"]["S"] for item in items]

    objects = open_objects(local_storage(tmp_path))
    subject = "cdn_realtime.cdn_slow{cdn=a}"
    detail = {"pipeline": "cdn_realtime", "rule": "cdn_slow", "episode": f"{subject}@1"}
    raised = present(raise_alert(objects, cause=FIRING, subject=subject, summary="slow", detail=detail))
    other = present(raise_alert(objects, cause="STREAM_HUNG", subject="stream games", summary="hangs"))
    resolved = present(resolve_alert(objects, cause=FIRING, subject=subject))

    assert deliver(raised) == [raised.title]
    assert deliver(other) == [raised.title]
    assert deliver(resolved) == []
