"""Shows invalid declarations of the project as an import error of this file. It defines no DAG.

The other DAG files skip invalid pipelines and relays, so that all others keep working.
"""

from __future__ import annotations

from deltaworks.specs.project import load_catalog

load_catalog(skip_invalid=True).check()
