"""Spark's daemon of Python workers, with protections disabled in the workers and optional crashes.

Spark starts it instead of `pyspark.daemon` if `spark.python.daemon.module` names it. Workers are forked from it and
inherit its changes.
"""

from __future__ import annotations

import os

from pyspark import daemon

#: Names of disabled protections, separated by spaces.
OFF = "DELTAWORKS_TEST_WORKERS_OFF"

if __name__ == "__main__":
    import pytest

    from tests.faults.harness import crashing_objects
    from tests.faults.harness.file_protections import switch_off

    switch_off(pytest.MonkeyPatch(), os.environ.get(OFF, "").split())
    if os.environ.get(crashing_objects.ARMED):
        crashing_objects.install_crashes()
    daemon.manager()
