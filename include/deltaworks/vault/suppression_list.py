"""The suppression list of a namespace, read at the start of an ingest."""

from __future__ import annotations

from deltaworks.control.objects import ObjectStore
from deltaworks.privacy.identities import Identity
from deltaworks.privacy.keys.base import KeyService
from deltaworks.privacy.keys.stored_keys import namespace_token_key
from deltaworks.privacy.suppression import Suppression, read_suppression


class SuppressionList:
    """The suppression list of a namespace, and the token key that is needed to match tokens."""

    def __init__(self, suppression: Suppression, key: bytes) -> None:
        self._suppression = suppression
        self._key = key

    @classmethod
    def read(cls, lake: ObjectStore, namespace: str, service: KeyService) -> SuppressionList:
        """Reads the current list. The token key is read only if the list has entries.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE, KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE, or the storage does not answer.
        """
        suppression = read_suppression(lake, namespace)
        if not len(suppression):
            return cls(suppression, b"")
        return cls(suppression, namespace_token_key(service, lake, namespace))

    @property
    def number(self) -> int:
        """The number of the list's last record; 0 for an empty list."""
        return self._suppression.number

    def matches(self, identity: Identity) -> bool:
        """Returns whether an identity's subject or token is suppressed."""
        tokens = {identity.subject, identity.token}
        return self._suppression.matches(self._key, tokens, at_us=identity.at_ms * 1000)
