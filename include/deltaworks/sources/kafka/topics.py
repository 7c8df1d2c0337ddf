"""Holds a pipeline to the topics it began with: one deleted and made anew has other records at the same offsets.

A topic's id is fixed by a put-if-absent object when a generation of the pipeline first sees it. Spark notices a topic
that is shorter than what was read; one that has grown past that again it would read on from the middle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ContractError


class KnownTopics:
    """The ids of a pipeline's topics in its current generation. For one run, in one thread."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._pipeline = home.pipeline
        self._known: dict[str, str] = {}

    def hold(self, found: Mapping[str, str]) -> None:
        """Compare the ids that topics have now with those they had first. A new topic is recorded.

        Raises:
            ContractError: KAFKA_TOPIC_REPLACED.
        """
        for topic, now in found.items():
            first = self._known.get(topic) or self._first(topic, now)
            if first != now:
                raise ContractError(
                    "KAFKA_TOPIC_REPLACED",
                    f"{self._pipeline!r} began with the topic {topic} of the id {first}; now its id is {now}: it was "
                    "deleted and made anew, and offsets read so far mean nothing there.",
                    hint=f"Read it from its beginning: `deltaworks pipelines start-over {self._pipeline}`; or name "
                    "the new topic otherwise and add it to `source.topics`.",
                )
            self._known[topic] = first

    def _first(self, topic: str, now: str) -> str:
        generation = self._home.generations.current()
        key = paths.kafka_topic(self._pipeline, generation, topic)
        if self._home.objects.put_if_absent(key, json.dumps({"topic_id": now}).encode()):
            return now
        recorded = self._home.objects.get(key)
        return now if recorded is None else str(json.loads(recorded.data)["topic_id"])
