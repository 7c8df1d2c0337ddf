"""Puts sample IP databases into the stack's lake for pipelines that look up client addresses.

A stream does not start without its database. MaxMind's databases need a download under their own licence, so the
embedded stack starts with generated networks. An existing database is never replaced.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from deltaworks.control import paths
from deltaworks.specs.project import load_catalog
from generator.networks import build_databases
from sandbox.stack.home import StackHome


def put_sample_databases(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Puts the sample databases that declared pipelines need and the lake lacks; returns their names. Idempotent.

    The lake's address and keys come from this process's environment variables.

    Args:
        only: pipelines that the stack runs; by default those of DELTAWORKS_PIPELINES, or all.
    """
    catalog = load_catalog(root=home.project, skip_invalid=True, only=only)
    names = {look_up.database for spec in catalog.pipelines.values() for look_up in spec.enrich if look_up.database}
    if not names:
        return ()
    from deltaworks.control.objects import open_objects

    samples = build_databases(built_at=int(time.time()))
    objects = open_objects(catalog.environment.lake)
    missing = sorted(name for name in names & samples.keys() if objects.get(paths.database(name)) is None)
    for name in missing:
        objects.put(paths.database(name), samples[name])
    return tuple(missing)
