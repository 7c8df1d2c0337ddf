"""Servers that sinks write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tests.moto_server import running_moto
from tests.unit.collector.spool_harness import Bucket


@pytest.fixture(scope="module")
def aws() -> Iterator[Any]:
    """Makes clients of one server."""
    with running_moto() as endpoint:
        session: Any = boto3.session.Session(
            aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )
        yield lambda service: session.client(service, endpoint_url=endpoint)


@pytest.fixture
def bucket(aws: Any) -> Iterator[Bucket]:
    """An empty bucket."""
    made = Bucket(aws("s3"))
    yield made
    for page in made.client.get_paginator("list_object_versions").paginate(Bucket="landing"):
        for item in page.get("Versions", []):
            made.client.delete_object(Bucket="landing", Key=item["Key"], VersionId=item["VersionId"])
    made.client.delete_bucket(Bucket="landing")
