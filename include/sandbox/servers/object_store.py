"""An S3 server for a local folder: s3proxy, which supports atomic conditional puts and keeps objects over restarts."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config

from deltaworks.build.jars import ensure_jars
from deltaworks.build.toolchain import find_java
from deltaworks.errors import TransientError
from deltaworks.specs.storage import StorageSpec
from sandbox.stack.secrets import write_private

HOST = "127.0.0.1"
REGION = "us-east-1"
_HEAP = "256m"
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoreCommand:
    """The command of an s3proxy. Call `write_properties` before running `argv`."""

    argv: tuple[str, ...]
    properties: Mapping[str, str]
    properties_file: Path

    def write_properties(self) -> None:
        """Writes the configuration, readable by its owner only because it contains keys."""
        write_private(self.properties_file, "".join(f"{k}={v}\n" for k, v in self.properties.items()))


@dataclass(frozen=True, slots=True)
class ObjectStoreAddress:
    """Address and keys of a running server."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = REGION

    def environment(self, *, endpoint: str | None = None) -> dict[str, str]:
        """Returns the environment variables that make this server the lake. `endpoint` replaces its address, e.g. by a
        proxy's.
        """
        return {
            "DELTAWORKS_LAKE_ENDPOINT": endpoint or self.endpoint,
            "DELTAWORKS_LAKE_ACCESS_KEY": self.access_key,
            "DELTAWORKS_LAKE_SECRET_KEY": self.secret_key,
        }


def lake_storage(root: str) -> StorageSpec:
    """Returns the storage at `root` on the server of `ObjectStoreAddress.environment`."""
    return StorageSpec.model_validate(
        {
            "root": root,
            "endpoint": "env:DELTAWORKS_LAKE_ENDPOINT",
            "region": REGION,
            "path_style": True,
            "access_key": "env:DELTAWORKS_LAKE_ACCESS_KEY",
            "secret_key": "env:DELTAWORKS_LAKE_SECRET_KEY",
        }
    )


def s3proxy_command(
    *, directory: Path, port: int, access_key: str, secret_key: str, properties_file: Path, jar: Path | None = None
) -> StoreCommand:
    """Returns the command that serves `directory`, in which folders are buckets and files are objects.

    Args:
        jar: s3proxy's jar; by default the one of `make jars`, which is resolved first if it is missing.
    """
    properties = {
        "s3proxy.endpoint": f"http://{HOST}:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": access_key,
        "s3proxy.credential": secret_key,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(directory),
        "jclouds.identity": "local",
        "jclouds.credential": "local",
    }
    java = find_java().home / "bin" / "java"
    server = jar if jar is not None else ensure_jars().s3proxy_jar
    argv = (str(java), f"-Xmx{_HEAP}", "-jar", str(server), "--properties", str(properties_file))
    return StoreCommand(argv=argv, properties=properties, properties_file=properties_file)


@contextmanager
def running_object_store(
    directory: Path, *, port: int = 0, buckets: Sequence[str] = ()
) -> Iterator[ObjectStoreAddress]:
    """Serves `directory` during the block and creates the buckets in it.

    Args:
        port: 0 for a free one.

    Raises:
        TransientError: OBJECT_STORE_DOWN, it did not respond within a minute; the message contains its output.
    """
    port = port or free_port()
    address = ObjectStoreAddress(f"http://{HOST}:{port}", f"test{secrets.token_hex(6)}", secrets.token_urlsafe(24))
    directory.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="s3proxy-"))
    command = s3proxy_command(
        directory=directory.resolve(),
        port=port,
        access_key=address.access_key,
        secret_key=address.secret_key,
        properties_file=work / "s3proxy.properties",
    )
    command.write_properties()
    with (work / "output").open("w+") as output:
        process = subprocess.Popen(command.argv, stdout=output, stderr=subprocess.STDOUT, cwd=work)
        try:
            wait_until_ready(address, process=process, output=work / "output")
            create_buckets(address, buckets)
            yield address
        finally:
            end_process(process)
            shutil.rmtree(work, ignore_errors=True)


def store_client(address: ObjectStoreAddress, *, attempts: int = 3) -> Any:
    """Creates a boto3 S3 client of the server."""
    return boto3.client(
        "s3",
        endpoint_url=address.endpoint,
        region_name=address.region,
        aws_access_key_id=address.access_key,
        aws_secret_access_key=address.secret_key,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": attempts}, connect_timeout=2),
    )


def create_buckets(address: ObjectStoreAddress, buckets: Sequence[str]) -> None:
    """Creates missing buckets."""
    client = store_client(address)
    existing = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
    for bucket in buckets:
        if bucket not in existing:
            client.create_bucket(Bucket=bucket)


def wait_until_ready(
    address: ObjectStoreAddress, *, process: subprocess.Popen[Any] | None = None, output: Path | None = None
) -> None:
    """Waits until the server answers a signed request.

    Raises:
        TransientError: OBJECT_STORE_DOWN, after a minute or as soon as `process` has ended.
    """
    client = store_client(address, attempts=1)
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            client.list_buckets()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > deadline:
                last_output = output.read_text()[-2000:] if output is not None else ""
                raise TransientError(
                    "OBJECT_STORE_DOWN", f"s3proxy does not answer at {address.endpoint}: {error}. {last_output}"
                ) from error
            time.sleep(0.1)
        else:
            return


def free_port() -> int:
    """Returns a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def end_process(process: subprocess.Popen[Any]) -> None:
    """Terminates a process; kills it if it does not end within seconds."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
