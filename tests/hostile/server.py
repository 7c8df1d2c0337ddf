"""A collector as a process, with a plain source, a public one and one that redacts: `python -m tests.hostile.server`.

`--off` takes bounds away, which the product has no switch for.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from collector.admission import Bounds
from collector.process import CollectorProcess
from collector.redaction import SourceRedactor
from deltaworks.privacy.key_service import LocalKeyring
from deltaworks.privacy.tokens.envelope_encryption import Sealer
from deltaworks.privacy.tokens.redactor import Redactor
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.privacy import PrivacySpec

#: Write keys by source. Hostile clients know only the public one.
KEYS = {"games": "key of honest clients", "players": "key of a source with personal data", "public": "public key"}
#: Values that take a bound away.
OFF: dict[str, Any] = {
    **dict.fromkeys(("head_bytes", "headers", "framing_factor", "requests_ahead"), 1 << 40),
    **dict.fromkeys(("keyless_bytes", "keyless_events", "growth_factor", "gzip_members"), 1 << 40),
    "bytes_per_second": 0,
    "rest_seconds": 0,
    "answer_seconds": 1e9,
}
_PRIVACY = PrivacySpec.model_validate(
    {
        "namespace": "players",
        "subject": "player",
        "fields": [
            {"path": "player", "action": "token", "as": "player"},
            {"path": "context.traits.email", "action": "vault", "as": "email"},
        ],
    }
)


def spec(**limits: Any) -> CollectorSpec:
    """Returns the spec of the collector on free ports."""

    def source(name: str) -> dict[str, Any]:
        keys = [{"sha256": hashlib.sha256(KEYS[name].encode()).hexdigest()}]
        rate = {"events_per_second": 5_000, "burst": 20_000}
        return {"pipeline": "games", "keys": keys, "sink": {"kind": "landing"}} | (
            {"rate": rate} if name == "public" else {}
        )

    return CollectorSpec.model_validate(
        {
            "collector": "edge",
            "listen": {"host": "127.0.0.1", "port": 0, "metrics_port": 0},
            "limits": {"drain_seconds": 0, **limits},
            "sources": {name: source(name) for name in KEYS},
        }
    )


def main() -> int:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--off", default="", help=f"bounds with commas between: {', '.join(OFF)}")
    options = parser.parse_args()
    bounds = dataclasses.replace(Bounds(), **{name: OFF[name] for name in options.off.split(",") if name})
    # A public key: bodies that cannot be read are sealed for its owner.
    day_key = X25519PrivateKey.generate().public_key().public_bytes_raw()
    sealer = Sealer(
        LocalKeyring(options.folder / "keys"), namespace="players", writer="edge", day_key=lambda day: day_key
    )
    redactor = SourceRedactor(Redactor(_PRIVACY, bytes(32)), sealer)
    return CollectorProcess(
        spec(), options.folder / "spool" / "w0", redactions={"players": redactor}, bounds=bounds
    ).run()


if __name__ == "__main__":
    sys.exit(main())
