"""A moto server whose SQS queues keep only the newest messages, as if a consumer emptied them. Runs as a separate
process.

moto scans all messages of a queue on each send. If messages stayed, filling a queue would measure moto: half a second
per call with some thousand messages. Options are those of `moto.server`.
"""

from __future__ import annotations

import sys

from moto.server import main
from moto.sqs.models import Message, Queue

_MAX_MESSAGES = 50
_add_message = Queue.add_message


def _add_and_consume(queue: Queue, message: Message) -> None:
    _add_message(queue, message)
    del queue._messages[:-_MAX_MESSAGES]


if __name__ == "__main__":
    Queue.add_message = _add_and_consume
    sys.exit(main())
