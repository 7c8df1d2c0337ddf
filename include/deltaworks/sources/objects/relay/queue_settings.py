"""Settings of a queue a relay can work with, and that make trouble all the same: told, not refused."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.sources.objects.relay.queue import NotificationQueue

#: A relay that is killed costs its messages a delivery each, and SQS counts deliveries that reach nobody.
LEAST_RECEIVES = 3
#: Below, messages come again while the append that holds them is still under way.
LEAST_VISIBILITY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class QueueWarning:
    """A setting to change: a condition, what is so, and what to do."""

    condition: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message} Next: {self.hint}"


def warnings_of(queue: NotificationQueue) -> tuple[QueueWarning, ...]:
    """What of the queue's settings is bound to make trouble. Raises what asking the queue raises."""
    found = []
    policy, seconds = queue.redrive_policy(), queue.visibility_seconds()
    if policy is not None and policy.max_receive_count < LEAST_RECEIVES:
        found.append(
            QueueWarning(
                "QUEUE_REDRIVES_EARLY",
                f"{queue.url} puts a message aside after {policy.max_receive_count} deliveries: a relay that is killed "
                "with messages in hand makes dead letters of them.",
                "Set maxReceiveCount to 5 or more.",
            )
        )
    if seconds < LEAST_VISIBILITY_SECONDS:
        found.append(
            QueueWarning(
                "QUEUE_VISIBILITY_SHORT",
                f"{queue.url} delivers a message again after {seconds} s, which a slow append takes longer than.",
                "Set the queue's visibility timeout to 120 s, or visibility_seconds of the relay.",
            )
        )
    return tuple(found)
