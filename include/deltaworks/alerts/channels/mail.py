"""Channel `email`: notifications as plain text, by SMTP. Mails about one alert form a thread."""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

from deltaworks.alerts.channels.channel import Send, channel_error, content_error
from deltaworks.alerts.channels.message import Message, MessageContext, message_of
from deltaworks.alerts.notification import Notification
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.specs.alert_channels import EmailChannelSpec
from deltaworks.specs.base import resolve_text


def email_sender(spec: EmailChannelSpec, context: MessageContext) -> Send:
    """Creates the sender. One mail goes to all recipients; it is accepted if the server takes it for one of them."""

    def send(notification: Notification) -> None:
        mail = mail_of(notification, message_of(notification, context), spec)
        with _errors(spec), _connection(spec) as smtp:
            smtp.send_message(mail)

    return send


def check_mail_server(spec: EmailChannelSpec) -> None:
    """Connects and logs in, without sending. Raises TransientError CHANNEL_FAILED."""
    with _errors(spec), _connection(spec) as smtp:
        smtp.noop()


def mail_of(notification: Notification, message: Message, spec: EmailChannelSpec) -> EmailMessage:
    """Returns the mail of a notification. A repeat has the same Message-ID, by which clients drop it."""
    mail, domain = EmailMessage(), spec.sender.rpartition("@")[2]
    thread = f"<{hashlib.sha256(f'{message.key} {notification.since}'.encode()).hexdigest()[:32]}@{domain}>"
    mail["Subject"] = message.title
    mail["From"] = Address("Deltaworks", addr_spec=spec.sender)
    mail["To"] = tuple(Address(addr_spec=address) for address in spec.recipients)
    mail["Date"] = format_datetime(parse_iso(notification.at) or utc_now())
    mail["Message-ID"] = f"<{notification.id}@{domain}>"
    mail["References"] = thread
    mail["In-Reply-To"] = thread
    mail["Auto-Submitted"] = "auto-generated"
    if message.tone == "critical":
        mail["Importance"] = "high"
    parts = [message.text, f"Next: {message.next_step}" if message.next_step else ""]
    parts += [f"{link.text}: {link.url}" for link in message.links]
    mail.set_content("\n\n".join(part for part in (*parts, message.footer) if part) + "\n")
    return mail


@contextmanager
def _connection(spec: EmailChannelSpec) -> Iterator[smtplib.SMTP]:
    """Opens an SMTP session, encrypted and logged in as declared."""
    host, tls = resolve_text(spec.host), ssl.create_default_context()
    if spec.security == "tls":
        session: smtplib.SMTP = smtplib.SMTP_SSL(host, spec.port, timeout=spec.timeout_seconds, context=tls)
    else:
        session = smtplib.SMTP(host, spec.port, timeout=spec.timeout_seconds)
    with session as smtp:
        if spec.security == "starttls":
            smtp.starttls(context=tls)
        if spec.username is not None and spec.password is not None:
            smtp.login(resolve_text(spec.username), spec.password.resolve())
        yield smtp


@contextmanager
def _errors(spec: EmailChannelSpec) -> Iterator[None]:
    """Raises the channel's errors for those of SMTP. A permanent rejection of the text concerns this mail alone."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        is_content = isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500
        build = content_error if is_content else channel_error
        raise build(spec.name, f"it answered {error.smtp_code} ({_text(error.smtp_error)})") from error
    except (smtplib.SMTPException, OSError) as error:
        raise channel_error(spec.name, type(error).__name__) from error


def _text(answer: bytes | str) -> str:
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())[:300]
