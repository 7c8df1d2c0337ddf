"""Whom the vault no longer takes in: the suppression list of a namespace, as of the beginning of a run."""

from __future__ import annotations

from deltaworks.control.objects import ObjectStore
from deltaworks.privacy.identities import Identity
from deltaworks.privacy.keys.base import KeyService
from deltaworks.privacy.keys.stored_keys import namespace_token_key
from deltaworks.privacy.suppression import Suppression, read_suppression


class SuppressionList:
    """The list with the key of the namespace's tokens, by which it names them."""

    def __init__(self, suppression: Suppression, key: bytes) -> None:
        self._suppression = suppression
        self._key = key

    @classmethod
    def read(cls, lake: ObjectStore, namespace: str, service: KeyService) -> SuppressionList:
        """The list as it is now. The key of the tokens is asked for only where somebody is on it.

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
        """The number of the last record of the list; 0 where there is none."""
        return self._suppression.number

    def matches(self, identity: Identity) -> bool:
        """Whether an identity is of somebody who was erased, or is one of their tokens."""
        tokens = {identity.subject, identity.token}
        return self._suppression.matches(self._key, tokens, at_us=identity.at_ms * 1000)
