"""Spark's own daemon of Python workers, whose workers lack what a test takes away, and die where it says so.

Spark starts it in place of `pyspark.daemon` where its setting `spark.python.daemon.module` says so; workers are forked
from it, and have what was changed before.
"""

from __future__ import annotations

import os

from pyspark import daemon

#: Names of protections, separated by spaces.
OFF = "DELTAWORKS_TEST_WORKERS_OFF"

if __name__ == "__main__":
    import pytest

    from tests.faults.harness import crashing_objects
    from tests.faults.harness.file_protections import switch_off

    switch_off(pytest.MonkeyPatch(), os.environ.get(OFF, "").split())
    if os.environ.get(crashing_objects.ARMED):
        crashing_objects.install_crashes()
    daemon.manager()
