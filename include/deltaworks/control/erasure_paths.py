"""Keys of erasure records. No key or object names a person: tokens are stored in the vault only, here only their
digest.
"""

from __future__ import annotations

from deltaworks.privacy.paths import control_path

#: In the vault: folder of the subjects of open requests.
REQUESTS_IN_VAULT = "requests/"


def erasure_requests(namespace: str) -> str:
    """The folder of all requests of a namespace."""
    return control_path(namespace, "requests") + "/"


def erasure_step(namespace: str, request_id: str, number: int) -> str:
    """The object of one state that a request has reached; numbers start at 1."""
    return f"{erasure_requests(namespace)}{request_id}/{number:04d}.json"


def erasure_window(namespace: str, number: int) -> str:
    """The object that fixes the requests that an erasure window purges."""
    return control_path(namespace, f"windows/{number:06d}.json")


def purged_table(namespace: str, number: int, pipeline: str, table: str) -> str:
    """The result of an erasure window for one table."""
    return control_path(namespace, f"windows/{number:06d}/{pipeline}.{table}.json")


def certificates(namespace: str) -> str:
    """The folder of the certificates of a namespace."""
    return control_path(namespace, "certificates") + "/"


def certificate(namespace: str, request_id: str) -> str:
    """The certificate of a request."""
    return f"{certificates(namespace)}{request_id}.json"


def erasure_lease(namespace: str) -> str:
    """The lease of the process that advances the requests of a namespace."""
    return control_path(namespace, "erasure_lease.json")


def request_subjects(namespace: str, request_id: str) -> str:
    """In the vault: the tokens of the person, until the certificate is written."""
    return f"{REQUESTS_IN_VAULT}{namespace}/{request_id}.json"


def replacement(number: int) -> str:
    """The plan of a rewrite of landed objects without erased events; numbers start at 1."""
    return f"control/landing/replacements/{number:06d}.json"


def replacement_completion(number: int) -> str:
    """The completion of a rewrite, with the ETags of the new objects."""
    return f"control/landing/replacements/{number:06d}.done.json"
