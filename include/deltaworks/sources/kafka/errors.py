"""Errors of Kafka's Java clients and of Spark's connector, which arrive as text, as our own."""

from __future__ import annotations

import re

from deltaworks.errors import ConfigError, ContractError, DeltaworksError

#: Records that are gone, in the words of Kafka's clients and of Spark's connector, and logins that are refused.
_OUT_OF_RANGE = re.compile(r"\bOffsetOutOfRangeException\b[^\n]*")
_EXPIRED = re.compile(r"Some data may have been lost because they are not available[^\n]*")
_LOGIN_REFUSED = re.compile(r"\bSaslAuthenticationException\b[^\n]*|\b(?:Topic|Group)AuthorizationException\b[^\n]*")
#: Certificates that one side does not accept, in Java's words.
_CERTIFICATE_REFUSED = re.compile(r"\bSslAuthenticationException\b[^\n]*|\bSSLHandshakeException\b[^\n]*")
_CERTIFICATE_CAUSE = re.compile(
    r"PKIX path[^\n]*|No subject alternative[^\n]*|Received fatal alert[^\n]*"
    r"|\bCertificate(?:Expired|NotYetValid)\w+[^\n]*"
)
_STORE_UNREADABLE = re.compile(r"Failed to load (?:PEM )?SSL keystore[^\n]*|Invalid PEM keystore configs[^\n]*")
_MESSAGE_LENGTH = 1_000


def parse_error(text: str) -> DeltaworksError | None:
    """The error that the text of a foreign one stands for; None where it is not Kafka's."""
    if expired := _OUT_OF_RANGE.search(text) or _EXPIRED.search(text):
        return ContractError(
            "SOURCE_EXPIRED",
            f"Records that no batch has read are not in the source any more: {expired.group()[:_MESSAGE_LENGTH]}",
            hint="See what was lost and why the stream was behind; `allow_data_loss: true` continues after it.",
        )
    if refused := _CERTIFICATE_REFUSED.search(text) or _STORE_UNREADABLE.search(text):
        cause = _CERTIFICATE_CAUSE.search(text)
        detail = refused.group() if cause is None else f"{refused.group()}: {cause.group()}"
        return ConfigError(
            "SOURCE_CERTIFICATE_REFUSED",
            f"The source and this client do not take each other's certificate: {detail[:_MESSAGE_LENGTH]}",
            hint="Mend `source.security`: truststore has to hold the authority of the brokers' certificate, keystore a "
            "certificate that they take, and bootstrap_servers the names in theirs.",
        )
    if refused := _LOGIN_REFUSED.search(text):
        return ConfigError(
            "SOURCE_LOGIN_REFUSED",
            f"The source refuses the login: {refused.group()[:_MESSAGE_LENGTH]}",
            hint="Mend the variables that `source.security` refers to, or what the user is allowed to read.",
        )
    return None
