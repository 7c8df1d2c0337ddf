"""AWS as moto plays it, with queues that are emptied as by a consumer. Run as a process of its own.

moto looks at every message of a queue at each that is sent, so what fills a queue would measure moto: half a second a
call at some thousand messages. Options are those of `moto.server`.
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
