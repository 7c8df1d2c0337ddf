"""The DAG files of the checkout, read again by Airflow when a declaration has changed.

Reading all DAG files takes four CPU seconds. Airflow does so at intervals, and at once for a file that has changed.
DAGs follow from the declarations, so their files are marked as changed when a declaration is.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from deltaworks.specs.project_folder import declaration_files, project_root

_LOGGER = logging.getLogger(__name__)


class DeclarationsBundle(LocalDagBundle):
    """A folder of DAG files that are changed by declarations. Airflow calls `refresh` every `refresh_interval`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._declarations = declaration_files(project_root())

    def refresh(self) -> None:
        """Marks the DAG files as changed if a declaration has changed since the last call."""
        declarations = declaration_files(project_root())
        if declarations == self._declarations:
            return
        self._declarations = declarations
        for path in self.path.glob("*.py"):
            try:
                path.touch()
            except OSError as error:
                _LOGGER.warning("%s follows the changed declarations only after the parsing interval: %s", path, error)
