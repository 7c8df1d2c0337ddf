"""Where the records of erasures lie: the part of `deltaworks.control.paths` that is about people who asked to go.

None of these objects names a person: tokens lie in the vault alone, and here is a digest of them.
"""

from __future__ import annotations

from deltaworks.privacy.paths import privacy_control

#: In the vault: the folder of whom requests under way are about.
REQUESTS_IN_VAULT = "requests/"


def erasure_requests(namespace: str) -> str:
    """The folder of all requests of a namespace."""
    return privacy_control(namespace, "requests") + "/"


def erasure_step(namespace: str, request_id: str, number: int) -> str:
    """The object of one state that a request has reached; they count from 1."""
    return f"{erasure_requests(namespace)}{request_id}/{number:04d}.json"


def erasure_window(namespace: str, number: int) -> str:
    """The object that fixes which requests a window purges."""
    return privacy_control(namespace, f"windows/{number:06d}.json")


def purged_table(namespace: str, number: int, pipeline: str, table: str) -> str:
    """The object that says what a window took out of one table."""
    return privacy_control(namespace, f"windows/{number:06d}/{pipeline}.{table}.json")


def certificates(namespace: str) -> str:
    """The folder of the certificates of a namespace."""
    return privacy_control(namespace, "certificates") + "/"


def certificate(namespace: str, request_id: str) -> str:
    """The certificate of a request."""
    return f"{certificates(namespace)}{request_id}.json"


def erasure_lease(namespace: str) -> str:
    """The lease of whoever brings requests of a namespace on."""
    return privacy_control(namespace, "erasure_lease.json")


def request_subjects(namespace: str, request_id: str) -> str:
    """In the vault: the tokens of whoever asked, until the certificate is written."""
    return f"{REQUESTS_IN_VAULT}{namespace}/{request_id}.json"


def replacement(number: int) -> str:
    """The object that fixes which landed objects are put anew without some events; numbers begin with 1."""
    return f"control/landing/replacements/{number:06d}.json"


def replacement_completion(number: int) -> str:
    """The object that says under which tags they were put."""
    return f"control/landing/replacements/{number:06d}.done.json"
