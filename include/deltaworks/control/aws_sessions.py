"""Sessions of boto3 that read what AWS says of its services once a process.

A client is made from a description of its service, a megabyte of JSON for S3, which each session reads and parses
anew: that is nearly all that a new client costs. Nothing else is shared: what is configured and whose keys it are is
up to each session, and each may be used in a thread of its own.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3


def aws_session() -> boto3.session.Session:
    """A session for clients of services; safe in threads, which boto3's default session is not."""
    import boto3
    from botocore.session import Session

    session = Session()
    session.register_component("data_loader", _shared_data_loader(session.get_config_variable("data_path")))
    return boto3.session.Session(botocore_session=session)


@cache
def _shared_data_loader(data_path: str | None) -> Any:
    """What has been read stays with it, for as long as the process lives."""
    from botocore.loaders import Loader

    class SharedLoader(Loader):
        """A loader that stays as it is: each session of boto3 adds a folder of its own to it, one more each time."""

        @property
        def search_paths(self) -> list[str]:
            return [*super().search_paths]

    return SharedLoader(extra_search_paths=data_path.split(":") if data_path else None)
