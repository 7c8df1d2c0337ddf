"""The vault on AWS, over the wire: buckets with versions are refused, KMS opens keys for their context alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import boto3
import pytest

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy.keys.base import EPOCH_PURPOSE, SEAL_PURPOSE, key_context
from deltaworks.privacy.keys.kms import KmsKeyService
from deltaworks.privacy.vault.job import rotate
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.namespace_vault import check_isolation
from deltaworks.specs.privacy import KmsSpec
from deltaworks.specs.storage import StorageSpec
from tests.moto_server import running_moto

NAMESPACE = "players"


@pytest.fixture(scope="module")
def aws() -> Iterator[dict[str, str]]:
    with running_moto() as address, pytest.MonkeyPatch.context() as patched:
        patched.setenv("TEST_ACCESS_KEY", "testing")
        patched.setenv("TEST_SECRET_KEY", "testing")
        yield {
            "endpoint": address,
            "region": "us-east-1",
            "access_key": "env:TEST_ACCESS_KEY",
            "secret_key": "env:TEST_SECRET_KEY",
        }


@pytest.fixture
def vault(aws: dict[str, str]) -> StorageSpec:
    storage = StorageSpec(root=f"s3://vault-{uuid.uuid4().hex[:8]}", path_style=True, **aws)  # type: ignore[arg-type]
    boto3.client("s3", **storage.boto3_options()).create_bucket(Bucket=storage.bucket)
    return storage


@pytest.fixture
def kms(aws: dict[str, str]) -> KmsKeyService:
    spec = KmsSpec(kind="kms", key_id="none", **aws)  # type: ignore[arg-type]
    key = boto3.client("kms", **spec.boto3_options()).create_key(Description="personal data")
    return KmsKeyService(spec.model_copy(update={"key_id": key["KeyMetadata"]["KeyId"]}))


def test_a_bucket_of_its_own_without_versions_is_a_vault(vault: StorageSpec) -> None:
    check_isolation(vault, vault.with_bucket("lake"), vault.with_bucket("landing"))


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_a_bucket_that_keeps_versions_is_refused(status: str, vault: StorageSpec) -> None:
    client = boto3.client("s3", **vault.boto3_options())
    client.put_bucket_versioning(Bucket=vault.bucket, VersioningConfiguration={"Status": status})

    with pytest.raises(ConfigError, match="VAULT_BUCKET_VERSIONED"):
        check_isolation(vault)


def test_a_bucket_that_is_replicated_is_refused(vault: StorageSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("s3", **vault.boto3_options())
    copy = f"copy-{vault.bucket}"
    client.create_bucket(Bucket=copy)
    for bucket in (vault.bucket, copy):
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    rule = {"Status": "Enabled", "Prefix": "", "Destination": {"Bucket": f"arn:aws:s3:::{copy}"}}
    client.put_bucket_replication(
        Bucket=vault.bucket,
        ReplicationConfiguration={"Role": "arn:aws:iam::123456789012:role/copies", "Rules": [rule]},
    )
    # S3 replicates versioned buckets alone: that one answer is left out, so that the other is what refuses.
    monkeypatch.setattr("deltaworks.privacy.vault.namespace_vault._VERSIONED_STATES", ())

    with pytest.raises(ConfigError, match="replication is enabled"):
        check_isolation(vault)


@pytest.mark.parametrize("root", ["s3://{bucket}", "s3://{bucket}/vault"])
def test_a_vault_in_the_bucket_of_the_lake_is_refused(root: str, vault: StorageSpec) -> None:
    lake = vault.model_copy(update={"root": root.format(bucket=vault.bucket)})

    with pytest.raises(ConfigError, match="VAULT_NOT_ISOLATED"):
        check_isolation(vault, lake)


def test_keys_of_subjects_rest_on_kms_and_survive_a_rotation_of_their_epoch(
    vault: StorageSpec, kms: KmsKeyService
) -> None:
    objects = open_objects(vault)
    epochs = EpochKeys(objects, NAMESPACE, kms)
    keys = SubjectKeys(objects, NAMESPACE, epochs)
    made = keys.get_or_create(["p1_a", "p1_b"])

    assert rotate(NAMESPACE, epochs, keys, dry_run=False, force=True).epoch == 2
    keys.shred(["p1_b"])

    again = SubjectKeys(objects, NAMESPACE, EpochKeys(objects, NAMESPACE, kms)).get(["p1_a", "p1_b"])
    assert again == {"p1_a": made["p1_a"]}


@pytest.mark.parametrize("context", [key_context("readers", EPOCH_PURPOSE), key_context(NAMESPACE, SEAL_PURPOSE), {}])
def test_kms_opens_a_key_for_no_other_namespace_or_purpose(context: dict[str, str], kms: KmsKeyService) -> None:
    key = kms.new_key(key_context(NAMESPACE, EPOCH_PURPOSE))

    assert kms.unwrap(key.wrapped, key_context(NAMESPACE, EPOCH_PURPOSE)) == key.plain
    with pytest.raises(ContractError, match="KEY_CONTEXT_DIFFERS"):
        kms.unwrap(key.wrapped, context)


def test_kms_destroys_a_key_after_its_days_and_once(kms: KmsKeyService) -> None:
    key = kms.new_key(key_context(NAMESPACE, EPOCH_PURPOSE))

    gone = kms.destroy(key.key_id)

    # moto goes on decrypting by a key that is to be deleted, which KMS refuses; the date is what it tells.
    days = (gone.destroyed_at - datetime.now(UTC)) / timedelta(days=1)
    assert 6 < days <= 7
    assert gone == kms.destroy(key.key_id)
