"""Tests whether a service accepts connections before clients start long retries.

For commands only: a stream waits for unreachable storage, a person does not.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.request
from urllib.parse import SplitResult, urlsplit

from deltaworks.errors import TransientError
from deltaworks.specs.base import resolve_text
from deltaworks.specs.storage import AwsSpec

TIMEOUT_SECONDS = 1.0
_PORTS = {"http": 80, "https": 443}


def check_reachable(service: AwsSpec, *, section: str, environment: str) -> None:
    """Connects once to a declared endpoint. Skips local disk, AWS endpoints and proxied endpoints.

    Args:
        section: the environment's section, such as `lake`.

    Raises:
        TransientError: STORAGE_UNREACHABLE, within about a second.
        ConfigError: REFERENCE_UNRESOLVED.
    """
    if service.endpoint is None:
        return
    endpoint = resolve_text(service.endpoint)
    parts = urlsplit(endpoint)
    if parts.hostname is None or _is_proxied(parts):
        return
    try:
        address = (parts.hostname, parts.port or _PORTS.get(parts.scheme, 443))
        socket.create_connection(address, timeout=TIMEOUT_SECONDS).close()
    except OSError as error:
        setting = f"{section}.endpoint in include/environments/{environment}.yaml"
        hint = f"Check {setting}, and the network."
        if _is_loopback(parts.hostname):
            hint = f"`deltaworks up` starts the embedded stack. Where this is another one, check {setting}."
        raise TransientError(
            "STORAGE_UNREACHABLE", f"Nothing answers at {endpoint} (the {section}).", hint=hint
        ) from error


def _is_proxied(parts: SplitResult) -> bool:
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
