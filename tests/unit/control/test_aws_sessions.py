"""boto3 sessions share service descriptions, and nothing else."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from deltaworks.control.objects import aws_session

PLACE = {"region_name": "eu-west-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Service descriptions that were read and parsed, by folder and name."""
    read: Counter[str] = Counter()
    load_file = JSONFileLoader.load_file

    def counted(self: Any, file_path: str) -> Any:
        content = load_file(self, file_path)
        if content is not None:
            read["/".join(Path(file_path).parts[-3:])] += 1
        return content

    monkeypatch.setattr(JSONFileLoader, "load_file", counted)
    return read


def test_a_service_description_is_read_once_for_all_sessions(files_read: Counter[str]) -> None:
    for _ in range(3):
        aws_session().client("firehose", **PLACE)

    assert any(name.startswith("firehose/") for name in files_read)
    assert set(files_read.values()) == {1}


def test_many_threads_create_clients_concurrently() -> None:
    def client(number: int) -> str:
        place = PLACE | {"endpoint_url": f"http://127.0.0.1:{number}"}
        return str(aws_session().client(("s3", "sqs", "sns")[number % 3], **place).meta.endpoint_url)

    with ThreadPoolExecutor(8) as threads:
        addresses = list(threads.map(client, range(1, 25)))

    assert addresses == [f"http://127.0.0.1:{number}" for number in range(1, 25)]


def test_sessions_do_not_share_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    first = aws_session()
    assert first.get_credentials().access_key == "first"

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")

    assert aws_session().get_credentials().access_key == "second"
    assert first.get_credentials().access_key == "first"


def test_the_search_path_does_not_grow() -> None:
    def folders() -> list[str]:
        session: Any = aws_session()
        return list(session._loader.search_paths)

    assert folders() == folders()
