"""Keys of subjects: one each, in pages, unrecoverable once destroyed, on AWS opened by KMS in their context alone."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects, StoredObject, open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy.key_service import EPOCH_PURPOSE, SEAL_PURPOSE, LocalKeyring, key_context
from deltaworks.privacy.paths import vault_key_page, vault_page_of
from deltaworks.privacy.stored_keys import KmsKeyService
from deltaworks.privacy.vault.job import rotate
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.namespace_vault import check_isolation
from deltaworks.specs.privacy import KmsSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import present
from tests.moto_server import running_moto

NAMESPACE = "players"


def page_key(subject: str) -> str:
    return vault_key_page(NAMESPACE, vault_page_of(subject))


def test_a_subject_keeps_the_key_that_was_made_first(keys: SubjectKeys) -> None:
    made = keys.get_or_create(["p1_a", "p1_b", "p1_a"])

    assert keys.get_or_create(["p1_a"]) == {"p1_a": made["p1_a"]}
    assert keys.get(["p1_a", "p1_b", "p1_c"]) == made
    assert made["p1_a"].key != made["p1_b"].key


def test_a_key_is_nowhere_in_plain_and_not_in_its_text(keys: SubjectKeys, tmp_path: Path) -> None:
    key = keys.get_or_create(["p1_a"])["p1_a"]

    stored = b"".join(path.read_bytes() for path in (tmp_path / "vault").rglob("*") if path.is_file())
    assert key.key not in stored
    assert key.key.hex() not in repr(key)


def test_shredding_removes_a_key_and_leaves_those_of_others(keys: SubjectKeys, objects: LocalObjects) -> None:
    made = keys.get_or_create(["p1_a", "p1_b"])

    done = keys.shred(["p1_a", "p1_c"])

    assert (done.removed, done.absent) == (("p1_a",), ("p1_c",))
    assert keys.get(["p1_a", "p1_b"]) == {"p1_b": made["p1_b"]}
    assert b"p1_a" not in (objects.get(page_key("p1_a")) or StoredObject(b"", "")).data
    assert keys.shred(["p1_a"]).absent == ("p1_a",)
    assert keys.get_or_create(["p1_a"])["p1_a"].key != made["p1_a"].key


class ForgetfulObjects(LocalObjects):
    """Says that it replaced an object, and did not."""

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        return "replaced"


def test_a_key_that_is_still_there_when_it_is_read_back_is_no_shredded_key(
    keys: SubjectKeys, epochs: EpochKeys, tmp_path: Path
) -> None:
    keys.get_or_create(["p1_a"])

    with pytest.raises(ContractError, match="VAULT_KEY_REMAINS"):
        SubjectKeys(ForgetfulObjects(tmp_path / "vault"), NAMESPACE, epochs).shred(["p1_a"])


def test_of_many_who_make_keys_on_one_page_at_once_all_get_the_same(
    objects: LocalObjects, keyring: LocalKeyring
) -> None:
    subjects = ["p1_a", "p1_b"]
    answers: list[dict[str, bytes]] = []

    def work() -> None:
        made = SubjectKeys(objects, NAMESPACE, EpochKeys(objects, NAMESPACE, keyring)).get_or_create(subjects)
        answers.append({subject: key.key for subject, key in made.items()})

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 6
    assert all(answer == answers[0] for answer in answers)


def test_a_key_that_was_put_under_another_subject_does_not_open(keys: SubjectKeys, objects: LocalObjects) -> None:
    keys.get_or_create(["p1_a"])
    stored = present(objects.get(page_key("p1_a")))
    page = json.loads(stored.data)
    page["page"] = vault_page_of("p1_z")
    page["keys"] = {"p1_z": page["keys"]["p1_a"]}
    objects.put(page_key("p1_z"), json.dumps(page).encode())

    with pytest.raises(ContractError, match="VAULT_KEYS_UNREADABLE"):
        keys.get(["p1_z"])


def test_an_old_page_after_a_rotation_opens_nothing(
    keys: SubjectKeys, epochs: EpochKeys, objects: LocalObjects, keyring: LocalKeyring
) -> None:
    made = keys.get_or_create(["p1_a", "p1_b"])
    old = present(objects.get(page_key("p1_a")))
    keys.shred(["p1_a"])

    done = rotate(NAMESPACE, epochs, keys, dry_run=False, force=True)
    objects.put(page_key("p1_a"), old.data)

    assert (done.epoch, done.destroyed, done.keys) == (2, "1", 1)
    with pytest.raises(ContractError, match="VAULT_EPOCH_DESTROYED"):
        SubjectKeys(objects, NAMESPACE, EpochKeys(objects, NAMESPACE, keyring)).get(["p1_a"])
    assert keys.get(["p1_b"]) == {"p1_b": made["p1_b"]}


def test_without_destroying_the_epoch_an_old_page_would_open(
    keys: SubjectKeys, epochs: EpochKeys, objects: LocalObjects, keyring: LocalKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys.get_or_create(["p1_a"])
    old = present(objects.get(page_key("p1_a")))
    keys.shred(["p1_a"])
    monkeypatch.setattr(EpochKeys, "destroy", lambda *_: None)

    rotate(NAMESPACE, epochs, keys, dry_run=False, force=True)
    objects.put(page_key("p1_a"), old.data)

    assert SubjectKeys(objects, NAMESPACE, EpochKeys(objects, NAMESPACE, keyring)).get(["p1_a"]) == made


STEPS = st.lists(
    st.tuples(st.sampled_from(["make", "shred", "rotate", "die"]), st.sets(st.sampled_from("abcdef"), max_size=4)),
    max_size=12,
)


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(STEPS)
def test_whatever_is_made_shredded_and_rotated_a_subject_has_the_key_a_table_of_keys_would_have(
    steps: list[tuple[str, set[str]]],
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        objects, keyring = LocalObjects(folder / "vault"), LocalKeyring(folder / "keys")
        expected: dict[str, bytes] = {}
        for step, subjects in steps:
            # A process of its own each time: nothing is remembered but what is stored.
            epochs = EpochKeys(objects, NAMESPACE, keyring)
            keys = SubjectKeys(objects, NAMESPACE, epochs)
            if step == "make":
                for subject, key in keys.get_or_create(subjects).items():
                    assert expected.setdefault(subject, key.key) == key.key
            elif step == "shred":
                done = keys.shred(subjects)
                assert set(done.removed) == subjects & expected.keys()
                expected = {subject: key for subject, key in expected.items() if subject not in subjects}
            elif step == "rotate":
                rotate(NAMESPACE, epochs, keys, dry_run=False, force=True)
                assert len(epochs.numbers()) <= 1
            elif epochs.numbers():
                # A rotation that died when it had begun its epoch and rewrapped some pages.
                epochs.get_or_create(epochs.newest().number + 1)
                for page in keys.pages()[:1]:
                    keys._rewrap_page(page, epochs.newest().number)
            stored = SubjectKeys(objects, NAMESPACE, EpochKeys(objects, NAMESPACE, keyring)).get("abcdef")
            assert {subject: key.key for subject, key in stored.items()} == expected
    finally:
        shutil.rmtree(folder)


def test_a_rotation_that_died_is_continued_and_none_begun_beside_it(keys: SubjectKeys, epochs: EpochKeys) -> None:
    made = keys.get_or_create(["p1_a", "p1_b"])
    epochs.get_or_create(2)

    done = rotate(NAMESPACE, epochs, keys, dry_run=False)

    assert (done.due, done.epoch, epochs.numbers()) == (True, 2, [2])
    assert keys.get(["p1_a", "p1_b"]) == made


def test_a_rotation_that_is_not_due_or_only_counted_changes_nothing(keys: SubjectKeys, epochs: EpochKeys) -> None:
    keys.get_or_create(["p1_a"])

    assert not rotate(NAMESPACE, epochs, keys, dry_run=False).due
    assert rotate(NAMESPACE, epochs, keys, force=True).due
    assert epochs.numbers() == [1]


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
