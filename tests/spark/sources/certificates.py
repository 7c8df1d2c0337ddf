"""A test certificate authority and the certificates it signs: PEM files with the key first."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Authority:
    """Signs certificates for servers and clients of this machine."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = _builder(subject, subject, key.public_key()).add_extension(x509.BasicConstraints(True, 0), True)
        made = cls(folder, name, key, built.sign(key, hashes.SHA256()))
        made.truststore.write_bytes(made.certificate.public_bytes(_PEM))
        return made

    @property
    def truststore(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def signed(self, name: str, *, password: str | None = None) -> Path:
        """A key and its certificate for 127.0.0.1, in one file: PEM, or PKCS12 that a password opens."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        built = _builder(subject, self.certificate.subject, key.public_key()).add_extension(here, False)
        certificate = built.sign(self.key, hashes.SHA256())
        if password is not None:
            place = self.folder / f"{name}_by_{self.name}.p12"
            locked = serialization.BestAvailableEncryption(password.encode())
            made = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, None, locked)
            place.write_bytes(made)
            return place
        place = self.folder / f"{name}_by_{self.name}.pem"
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        place.write_bytes(private + certificate.public_bytes(_PEM))
        return place


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
