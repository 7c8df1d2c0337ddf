"""Mails arrive at an SMTP server as plain text, in a thread per alert, encrypted and logged in as declared."""

from __future__ import annotations

import datetime as dt
import email.policy
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deltaworks.alerts.channels import channel_problems, open_channels
from deltaworks.alerts.channels.mail import email_sender
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import DeltaworksError
from deltaworks.specs.alert_channels import AlertsSpec, EmailChannelSpec
from deltaworks.specs.storage import AwsSpec
from sandbox.servers.object_store import free_port
from tests.unit.alerts.channels.alert_samples import ADVICE, CONTEXT, life_of_an_alert
from tests.unit.alerts.conftest import Clock


class Mailbox:
    """Keeps the mails of a server, which may reject recipients or texts."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.data_answer = "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        parsed = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        if self.data_answer.startswith("250"):
            self.mails.append(parsed)
            self.recipients.append(envelope.rcpt_tos)
        return self.data_answer


@contextmanager
def smtp_server(box: Mailbox, **options: Any) -> Iterator[int]:
    """Runs a server on a free port; yields the port."""
    controller = Controller(box, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def spec_of(port: int, **more: Any) -> EmailChannelSpec:
    declared = {
        "kind": "email",
        "name": "mail",
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "sender": "alerts@example.com",
        "recipients": ["ada@example.com", "bo@example.com"],
        "timeout_seconds": 5,
    }
    return EmailChannelSpec.model_validate({**declared, **more})


def test_the_mails_of_an_alert_are_a_thread_of_plain_text(objects: LocalObjects, clock: Clock) -> None:
    box = Mailbox()
    with smtp_server(box) as port:
        for notification in life_of_an_alert(objects, clock).values():
            email_sender(spec_of(port), CONTEXT)(notification)

    assert [mail["Subject"].partition(":")[0] for mail in box.mails] == [
        "Warning",
        "Critical",
        "Still critical",
        "Resolved",
    ]
    assert len({mail["References"] for mail in box.mails}) == 1
    assert len({mail["Message-ID"] for mail in box.mails}) == 4
    first = box.mails[0]
    assert first.get_content_type() == "text/plain"
    assert first["Auto-Submitted"] == "auto-generated"
    assert box.recipients[0] == ["ada@example.com", "bo@example.com"]
    paragraphs = first.get_content().strip().replace("\r\n", "\n").split("\n\n")
    assert paragraphs[1] == f"Next: {ADVICE}"
    assert paragraphs[2] == "Runbook: https://docs.example.com/how-to/write-rules.md#a-rule-fires"


@pytest.mark.parametrize(
    ("answer", "condition"), [("451 try later", "CHANNEL_FAILED"), ("554 too odd", "NOTIFICATION_REJECTED")]
)
def test_a_text_that_is_rejected_for_good_concerns_that_mail_alone(
    objects: LocalObjects, clock: Clock, answer: str, condition: str
) -> None:
    box = Mailbox()
    box.data_answer = answer
    with smtp_server(box) as port, pytest.raises(DeltaworksError) as refused:
        email_sender(spec_of(port), CONTEXT)(life_of_an_alert(objects, clock)["raised"])

    assert refused.value.condition == condition
    assert answer[4:] in refused.value.message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate of 127.0.0.1 that signs itself, and a server's context with it."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail")])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "mail.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=(data.login, data.password) == (b"deltaworks", b"s3cret"), handled=False)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_login_is_encrypted_and_an_unknown_certificate_is_refused(
    objects: LocalObjects,
    clock: Clock,
    certificate: tuple[Path, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    security: str,
) -> None:
    path, context = certificate
    monkeypatch.setenv("MAIL_PASSWORD", "s3cret")
    options: dict[str, Any] = {"authenticator": authenticate, "auth_required": True}
    options |= {"tls_context": context} if security == "starttls" else {"ssl_context": context}
    if security == "tls":
        options["auth_require_tls"] = False  # the connection is encrypted from its beginning
    notification, box = life_of_an_alert(objects, clock)["raised"], Mailbox()
    with smtp_server(box, **options) as port:
        spec = spec_of(port, security=security, username="deltaworks", password="env:MAIL_PASSWORD")
        with pytest.raises(DeltaworksError, match="SSLCertVerificationError"):
            email_sender(spec, CONTEXT)(notification)
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        email_sender(spec, CONTEXT)(notification)
        monkeypatch.setenv("MAIL_PASSWORD", "wr0ng-value")
        with pytest.raises(DeltaworksError, match="535") as refused:
            email_sender(spec, CONTEXT)(notification)

    assert len(box.mails) == 1
    assert "wr0ng-value" not in str(refused.value)


def test_a_check_names_a_server_that_does_not_answer_and_a_secret_without_value() -> None:
    box, messaging = Mailbox(), AwsSpec()
    with smtp_server(box) as port:
        declared = spec_of(port).model_dump(mode="json")
        (well,) = open_channels(AlertsSpec.model_validate({"channels": [declared]}), messaging)
        assert channel_problems(well, messaging) == []
    (problem,) = channel_problems(well, messaging)
    assert problem.is_blocking
    assert "ConnectionRefusedError" in problem.text
    chat = {"kind": "slack", "name": "chat", "url": "env:NO_SUCH_CHAT_URL"}
    (unset,) = open_channels(AlertsSpec.model_validate({"channels": [chat]}), messaging)
    (problem,) = channel_problems(unset, messaging)
    assert "NO_SUCH_CHAT_URL" in problem.text
    assert box.mails == []
