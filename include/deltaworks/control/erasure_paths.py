"""Keys of erasure records.

No key and no record identifies a person: tokens are stored only in the vault, and records contain only their digest.
"""

from __future__ import annotations

from deltaworks.privacy.paths import control_path

#: In the vault: folder of the subjects of open requests.
REQUESTS_IN_VAULT = "requests/"


def erasure_requests(namespace: str) -> str:
    """Returns the folder of all requests of a namespace."""
    return control_path(namespace, "requests") + "/"


def erasure_step(namespace: str, request_id: str, number: int) -> str:
    """Returns the key of the record of one state that a request has reached; numbers start at 1."""
    return f"{erasure_requests(namespace)}{request_id}/{number:04d}.json"


def erasure_window(namespace: str, number: int) -> str:
    """Returns the key of the record of an erasure window: the requests whose rows it deletes."""
    return control_path(namespace, f"windows/{number:06d}.json")


def purged_table(namespace: str, number: int, pipeline: str, table: str) -> str:
    """Returns the key of an erasure window's result for one table."""
    return control_path(namespace, f"windows/{number:06d}/{pipeline}.{table}.json")


def certificates(namespace: str) -> str:
    """Returns the folder of the certificates of a namespace."""
    return control_path(namespace, "certificates") + "/"


def certificate(namespace: str, request_id: str) -> str:
    """Returns the key of the certificate of a request."""
    return f"{certificates(namespace)}{request_id}.json"


def erasure_lease(namespace: str) -> str:
    """Returns the key of the lease of the process that advances the requests of a namespace."""
    return control_path(namespace, "erasure_lease.json")


def request_subjects(namespace: str, request_id: str) -> str:
    """Returns the key of the person's tokens in the vault, which are stored until the certificate is written."""
    return f"{REQUESTS_IN_VAULT}{namespace}/{request_id}.json"


def replacement(number: int) -> str:
    """Returns the key of the plan of a rewrite of landed objects without erased events; numbers start at 1."""
    return f"control/landing/replacements/{number:06d}.json"


def replacement_completion(number: int) -> str:
    """Returns the key of the completion of a rewrite, with the ETags of the new objects."""
    return f"control/landing/replacements/{number:06d}.done.json"
