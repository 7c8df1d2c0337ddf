"""The provider's spark-submit hook, made to die with its task and to hear what the job says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from deltaworks.airflow.child_process import child_options
from deltaworks.airflow.job_output import JobOutput


class SparkJobHook(SparkSubmitHook):
    """Runs spark-submit; see `child_options` for how its life is tied to the task's."""

    output: JobOutput | None = None
    niceness: int = 0

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job to its end.

        Raises:
            DeltaworksError: what the job said was wrong, with its own verdict on retrying.
            AirflowException: it failed without a word; the text ends with the last lines of its output.
        """
        try:
            return super().submit(application, **{**child_options(niceness=self.niceness), **kwargs})
        except AirflowException as error:
            if self.output is not None and self.output.error is not None:
                raise self.output.error from error
            raise

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(iter(self.output.listen(itr)) if self.output else itr)
