"""Runs a relay's process as Airflow starts it, with the given protections disabled."""

from __future__ import annotations

import os
import sys

#: Names of disabled protections, separated by spaces.
OFF = "DELTAWORKS_TEST_RELAY_OFF"

if __name__ == "__main__":
    import pytest

    from deltaworks.sources.objects.relay.__main__ import main
    from tests.faults.harness.file_protections import switch_off

    switch_off(pytest.MonkeyPatch(), os.environ.get(OFF, "").split())
    sys.exit(main())
