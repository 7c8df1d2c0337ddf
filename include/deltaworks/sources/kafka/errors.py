"""Maps the text of errors of Kafka's Java clients and Spark's connector to Deltaworks errors."""

from __future__ import annotations

import re

from deltaworks.errors import ConfigError, ContractError, DeltaworksError

#: Messages of Kafka's clients and Spark's connector for expired records and rejected logins.
_OUT_OF_RANGE = re.compile(r"\bOffsetOutOfRangeException\b[^\n]*")
_EXPIRED = re.compile(r"Some data may have been lost because they are not available[^\n]*")
_LOGIN_REFUSED = re.compile(r"\bSaslAuthenticationException\b[^\n]*|\b(?:Topic|Group)AuthorizationException\b[^\n]*")
#: Java's messages for certificates that one side rejects.
_CERTIFICATE_REFUSED = re.compile(r"\bSslAuthenticationException\b[^\n]*|\bSSLHandshakeException\b[^\n]*")
_CERTIFICATE_CAUSE = re.compile(
    r"PKIX path[^\n]*|No subject alternative[^\n]*|Received fatal alert[^\n]*"
    r"|\bCertificate(?:Expired|NotYetValid)\w+[^\n]*"
)
_STORE_UNREADABLE = re.compile(r"Failed to load (?:PEM )?SSL keystore[^\n]*|Invalid PEM keystore configs[^\n]*")
_MESSAGE_LENGTH = 1_000


def parse_error(text: str) -> DeltaworksError | None:
    """Returns the error for the text of a foreign exception; None if it is not Kafka's."""
    if expired := _OUT_OF_RANGE.search(text) or _EXPIRED.search(text):
        return ContractError(
            "SOURCE_EXPIRED", f"Records expired before any batch read them: {expired.group()[:_MESSAGE_LENGTH]}"
        )
    if refused := _CERTIFICATE_REFUSED.search(text) or _STORE_UNREADABLE.search(text):
        cause = _CERTIFICATE_CAUSE.search(text)
        detail = refused.group() if cause is None else f"{refused.group()}: {cause.group()}"
        return ConfigError(
            "SOURCE_CERTIFICATE_REFUSED",
            f"Client or brokers reject the other side's certificate: {detail[:_MESSAGE_LENGTH]}",
        )
    if refused := _LOGIN_REFUSED.search(text):
        return ConfigError("SOURCE_LOGIN_REFUSED", f"The brokers reject the login: {refused.group()[:_MESSAGE_LENGTH]}")
    return None
