"""Objects that the storage refuses: one is quarantined if others can be read; if all are refused, the stream stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from deltaworks.engine.fan_out import merge_outputs, partition_columns, write_payloads
from deltaworks.engine.writers import FileTarget
from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.reasons import ReasonCode
from deltaworks.sources.objects import payloads
from deltaworks.sources.objects.payloads import FileOpener, FileReference, open_object
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage
from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy

#: What S3 answers where a key of KMS refuses, is disabled or gone, where the client lacks a customer's own key.
OF_AN_OBJECT = [
    (403, "AccessDenied"),
    (400, "InvalidRequest"),
    (400, "KMS.DisabledException"),
    (400, "KMS.NotFoundException"),
    (400, "InvalidArgument"),
    (405, "MethodNotAllowed"),
]
OF_WHO_ASKS = [(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "RequestTimeTooSkewed"), (404, "NoSuchBucket")]


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    payloads._are_siblings_readable.cache_clear()


@contextmanager
def refusing(landing: Any, path: str, status: int, code: str) -> Iterator[FileOpener]:
    """An opener of the landing bucket, of which paths like this are refused."""
    fault = Fault(action=Action.REFUSE, method="GET", path=path, status=status, code=code)
    with running_fault_proxy(landing.endpoint, faults=[fault]) as proxy:
        storage = landing.storage.model_copy(update={"endpoint": proxy.endpoint})
        yield FileOpener(storage, compression="auto", quarantine_refused=True)


@pytest.mark.parametrize(("status", "code"), OF_AN_OBJECT)
def test_a_refused_object_is_quarantined_if_its_siblings_can_be_read(landing: Any, status: int, code: str) -> None:
    landing.put("games/1", "games/2", body=b'{"a": 1}')
    with refusing(landing, r"games/1(\?|$)", status, code) as opener:
        refused, good = (opener(FileReference(seq, f"games/{seq}", "")) for seq in (1, 2))

    assert good.data == b'{"a": 1}'
    assert (refused.data, refused.refusal) == (None, None)
    assert refused.problem is not None
    assert refused.problem.code is ReasonCode.OBJECT_UNREADABLE
    assert refused.problem.detail.endswith(f"games/1 may not be read ({code}).")


@pytest.mark.parametrize(("status", "code"), OF_WHO_ASKS)
def test_a_refusal_of_the_caller_stops_the_stream(landing: Any, status: int, code: str) -> None:
    landing.put("games/1", "games/2")
    with (
        refusing(landing, r"games/1(\?|$)", status, code) as opener,
        pytest.raises(ConfigError, match=rf"OBJECT_FORBIDDEN.*{code}"),
    ):
        opener(FileReference(1, "games/1", ""))


def test_if_nothing_can_be_read_the_object_is_not_blamed(landing: Any) -> None:
    landing.put("games/1")
    with refusing(landing, "games/", 403, "AccessDenied") as opener:
        payload = opener(FileReference(1, "games/1", ""))

    assert payload.refusal is not None
    assert payload.refusal.condition == "OBJECT_FORBIDDEN"


@pytest.mark.parametrize("others", [0, 1])
def test_a_batch_stops_if_none_of_its_objects_can_be_read_and_continues_otherwise(
    landing: Any, make_spec: Callable[..., PipelineSpec], tmp_path: Path, others: int
) -> None:
    spec, stamp = make_spec(), BatchMetadata(1, 0, "fp")
    target = FileTarget(None, {name: str(tmp_path / name) for name in partition_columns(spec)}, partition_columns(spec))
    keys = ["games/refused", *["other/good"] * others]
    landing.put(*keys)
    with refusing(landing, "games/", 403, "AccessDenied") as opener:
        tasks = [[opener(FileReference(seq, key, ""))] for seq, key in enumerate(keys)]
    outputs = [TaskOutput.decode(write_payloads(task, spec, stamp, target).encode()) for task in tasks]

    written = merge_outputs(outputs, target, {})

    assert written.files["quarantine"][0].rows == 1
    assert (written.findings.refusal is not None, written.findings.any_read) == (True, bool(others))


def test_rereading_raises_an_error_for_a_refusal(landing: Any) -> None:
    landing.put("games/1")
    with refusing(landing, "games/", 400, "InvalidRequest") as opener:
        strict = FileOpener(StorageSpec.model_validate_json(opener._storage), compression="auto")
        with pytest.raises(ConfigError, match=r"OBJECT_FORBIDDEN.*InvalidRequest"):
            strict(FileReference(1, "games/1", ""))


def test_a_key_that_clients_reject_is_an_error_of_the_object(landing: Any) -> None:
    with pytest.raises(ContractError, match="OBJECT_UNREADABLE"):
        open_object(landing.storage, "", "e")


def test_a_file_on_local_disk_may_be_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"{}")

    def refused(path: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refused)
    opener = FileOpener(local_storage(tmp_path), compression="auto", quarantine_refused=True)
    payload = opener(FileReference(1, "one", ""))

    assert payload.problem is not None
    assert payload.problem.code is ReasonCode.OBJECT_UNREADABLE
    assert payload.refusal is not None


def test_a_decompression_error_is_an_error_of_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"{}")

    def exploding(*positional: Any, **named: Any) -> bytes:
        raise MemoryError

    monkeypatch.setattr(payloads, "decompress", exploding)
    payload = FileOpener(local_storage(tmp_path), compression="auto")(FileReference(1, "one", ""))

    assert payload.problem is not None
    assert payload.problem.detail == "opening it failed: MemoryError"


def test_every_client_error_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def get_object(self, **_: Any) -> Any:
            answer = {"Error": {"Code": "Odd"}, "ResponseMetadata": {"HTTPStatusCode": 418}}
            raise ClientError(answer, "GetObject")  # type: ignore[arg-type]

    monkeypatch.setattr(payloads, "_client", lambda *_: Client())
    with pytest.raises(ConfigError, match="OBJECT_FORBIDDEN"):
        open_object(StorageSpec(root="s3://b"), "k", "")
