"""One storage spec for four clients: their settings are equal, and they read each other's objects."""

from __future__ import annotations

import uuid
from urllib.parse import urlparse

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs
from pydantic import ValidationError

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.specs.storage import StorageSpec, connection_variables, resolved_variables
from deltaworks.tables.lake import Lake, arrow_filesystem, arrow_path
from deltaworks.testing import present

BUCKET = f"lake-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def storage(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> StorageSpec:
    monkeypatch.setenv("TEST_ENDPOINT", endpoint)
    monkeypatch.setenv("TEST_ACCESS_KEY", "the-access-key")
    monkeypatch.setenv("TEST_SECRET_KEY", "the-secret-key")
    spec = StorageSpec(
        root=f"s3://{BUCKET}/some/prefix",
        endpoint="env:TEST_ENDPOINT",
        region="eu-central-1",
        path_style=True,
        access_key="env:TEST_ACCESS_KEY",
        secret_key="env:TEST_SECRET_KEY",
    )
    client = boto3.client("s3", **spec.boto3_options())
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    return spec


def emitted(storage: StorageSpec) -> dict[str, dict[str, object]]:
    """What each client is told, in one vocabulary."""
    boto, delta, arrow = storage.boto3_options(), storage.deltalake_options(), storage.arrow_options()
    prefix = f"spark.hadoop.fs.s3a.bucket.{storage.bucket}."
    s3a = {name.removeprefix(prefix): value for name, value in storage.spark_conf().items()}
    return {
        "boto3": {
            "endpoint": urlparse(boto["endpoint_url"]).netloc,
            "plain_http": boto["endpoint_url"].startswith("http://"),
            "region": boto["region_name"],
            "keys": (boto["aws_access_key_id"], boto["aws_secret_access_key"]),
            "path_style": storage.path_style,
        },
        "deltalake": {
            "endpoint": urlparse(delta["AWS_ENDPOINT_URL"]).netloc,
            "plain_http": delta.get("AWS_ALLOW_HTTP") == "true",
            "region": delta["AWS_REGION"],
            "keys": (delta["AWS_ACCESS_KEY_ID"], delta["AWS_SECRET_ACCESS_KEY"]),
            "path_style": delta["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == "false",
        },
        "pyarrow": {
            "endpoint": arrow["endpoint_override"],
            "plain_http": arrow["scheme"] == "http",
            "region": arrow["region"],
            "keys": (arrow["access_key"], arrow["secret_key"]),
            "path_style": not arrow["force_virtual_addressing"],
        },
        "s3a": {
            "endpoint": urlparse(s3a["endpoint"]).netloc,
            "plain_http": s3a["connection.ssl.enabled"] == "false",
            "region": s3a["endpoint.region"],
            "keys": (s3a["access.key"], s3a["secret.key"]),
            "path_style": s3a["path.style.access"] == "true",
        },
    }


def test_all_clients_get_equal_settings(storage: StorageSpec) -> None:
    for spec in (storage, storage.model_copy(update={"path_style": False, "endpoint": "https://s3.example.com:8443"})):
        expected_text = emitted(spec)
        assert expected_text["boto3"] == expected_text["deltalake"] == expected_text["pyarrow"] == expected_text["s3a"]


def test_a_small_file_is_written_by_one_request(storage: StorageSpec) -> None:
    assert storage.arrow_options()["allow_delayed_open"]


def test_without_endpoint_and_keys_clients_use_their_default_chain() -> None:
    bare = StorageSpec(root="s3://lake")

    assert bare.boto3_options() == {"region_name": "us-east-1"}
    assert not [name for name in bare.deltalake_options() if "KEY" in name or "ENDPOINT" in name]
    assert not {"access_key", "endpoint_override"} & set(bare.arrow_options())
    assert not [name for name in bare.spark_conf() if "key" in name or name.endswith(".endpoint")]


def test_deltalake_commits_by_conditional_put(storage: StorageSpec) -> None:
    assert storage.deltalake_options()["aws_conditional_put"] == "etag"


def test_an_object_of_each_client_is_read_by_the_others(storage: StorageSpec) -> None:
    objects, arrow = open_objects(storage), arrow_filesystem(storage)

    objects.put("from/boto3", b"by boto3")
    with arrow.open_output_stream(arrow_path(storage, "from/pyarrow")) as stream:
        stream.write(b"by pyarrow")

    assert arrow.open_input_stream(arrow_path(storage, "from/boto3")).read() == b"by boto3"
    assert present(objects.get("from/pyarrow")).data == b"by pyarrow"
    assert objects.list("from/") == ["from/boto3", "from/pyarrow"]


def test_a_table_written_by_deltalake_is_found_by_the_others(storage: StorageSpec) -> None:
    rows = pa.table({"a": [1, 2, 3]})
    write_deltalake(storage.uri("tables/t"), rows, storage_options=storage.deltalake_options())

    assert open_objects(storage).get("tables/t/_delta_log/00000000000000000000.json") is not None
    listed = arrow_filesystem(storage).get_file_info(fs.FileSelector(arrow_path(storage, "tables/t")))
    assert [info for info in listed if info.base_name.endswith(".parquet")]
    table = Lake(storage).open("tables/t")
    assert isinstance(table, DeltaTable)
    assert table.to_pyarrow_table().num_rows == 3


def test_uris_of_a_key_for_each_client() -> None:
    storage = StorageSpec(root="s3://lake/prefix/")
    local = StorageSpec(root="file:///data/lake")

    assert storage.uri("a/b") == "s3://lake/prefix/a/b"
    assert storage.spark_uri("a/b") == "s3a://lake/prefix/a/b"
    assert arrow_path(storage, "a/b") == "lake/prefix/a/b"
    assert local.uri("a") == local.spark_uri("a") == "file:///data/lake/a"
    assert arrow_path(local, "a") == "/data/lake/a"


def test_local_disk_needs_no_options() -> None:
    local = StorageSpec(root="file:///data/lake")

    assert local.deltalake_options() == {}
    assert local.spark_conf() == {}


@pytest.mark.parametrize("root", ["lake", "s3a://lake", "s3:///key", "file://data/lake", "file:///", "gs://lake"])
def test_an_invalid_root_is_rejected(root: str) -> None:
    with pytest.raises(ValidationError, match="write s3://bucket/prefix or file:///absolute/path"):
        StorageSpec(root=root)


def test_an_airflow_connection_becomes_references_to_variables_of_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = StorageSpec(root="s3://lake", aws_conn_id="my_lake")

    assert str(storage.secret_key) == "env:DELTAWORKS_CONNECTION_MY_LAKE_SECRET_KEY"
    assert StorageSpec.model_validate(storage.model_dump()) == storage
    assert StorageSpec.model_validate_json(storage.model_dump_json()) == storage
    with pytest.raises(ConfigError, match="REFERENCE_UNRESOLVED") as caught:
        storage.boto3_options()
    assert (
        "Airflow sets it for its tasks and jobs, from the connection aws_conn_id. Elsewhere, set" in caught.value.hint
    )
    for name, value in connection_variables("my_lake", access_key="a", secret_key="s", token="t").items():
        monkeypatch.setenv(name, value)
    assert storage.session_token() == "t"
    assert sorted(resolved_variables(storage).values()) == ["a", "s", "t"]
    monkeypatch.setenv("DELTAWORKS_CONNECTION_MY_LAKE_SESSION_TOKEN", "")
    assert storage.session_token() is None
    assert "aws_session_token" not in storage.boto3_options()


@pytest.mark.parametrize("keys", [{"access_key": "env:A", "secret_key": "env:B"}, {"access_key": "env:A"}])
def test_keys_are_unique(keys: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="give either aws_conn_id, or access_key and secret_key"):
        StorageSpec.model_validate({"root": "s3://lake", "aws_conn_id": "my_lake"} | keys)
