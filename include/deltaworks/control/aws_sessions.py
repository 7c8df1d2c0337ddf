"""boto3 sessions that share one cache of service descriptions per process.

To create a client, botocore parses a description of the service (1 MB of JSON for S3), once per session; this is most
of the cost of a new client. The sessions share only this cache: each has its own configuration and credentials, and can
be used in its own thread.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3


def aws_session() -> boto3.session.Session:
    """Returns a new boto3 session. Thread-safe, unlike boto3's default session."""
    import boto3
    from botocore.session import Session

    session = Session()
    session.register_component("data_loader", _shared_data_loader(session.get_config_variable("data_path")))
    return boto3.session.Session(botocore_session=session)


@cache
def _shared_data_loader(data_path: str | None) -> Any:
    """Returns the loader of service descriptions; its cache lives as long as the process."""
    from botocore.loaders import Loader

    class SharedLoader(Loader):
        """A loader whose search path cannot change; otherwise each boto3 session would append a folder to it."""

        @property
        def search_paths(self) -> list[str]:
            return [*super().search_paths]

    return SharedLoader(extra_search_paths=data_path.split(":") if data_path else None)
