"""What every test run keeps to: examples that are the same on every machine, however slow it is.

`pytest --hypothesis-profile=explore` looks for new examples instead.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SLOW_MACHINES = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("explore", **SLOW_MACHINES)
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeatable")
