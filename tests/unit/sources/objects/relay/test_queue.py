"""The results of batch calls to the queue are checked entry by entry."""

from __future__ import annotations

from typing import Any


class FlakyDeletes:
    """Passes batch deletes on, but fails chosen entries a number of times, as SQS does."""

    def __init__(self, client: Any, *, failures: int, sender_fault: bool = False) -> None:
        self._client = client
        self._failures = failures
        self._sender_fault = sender_fault
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def delete_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(len(Entries))
        if self._failures == 0:
            return dict(self._client.delete_message_batch(QueueUrl=QueueUrl, Entries=Entries))
        self._failures -= 1
        refused, passed = Entries[:3], Entries[3:]
        answer = self._client.delete_message_batch(QueueUrl=QueueUrl, Entries=passed) if passed else {}
        failed = [{"Id": entry["Id"], "SenderFault": self._sender_fault, "Code": "X"} for entry in refused]
        return {"Successful": answer.get("Successful", []), "Failed": failed}


def receive_all(queue: Any, number: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < number:
        messages += queue.receive()
    return messages


def test_failed_entries_are_deleted_by_another_call(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(10)))
    queue = landing.queue()
    messages = receive_all(queue, 10)
    queue._client = flaky = FlakyDeletes(queue._client, failures=2)
    outcome = queue.delete(messages)
    assert (outcome.succeeded, outcome.expired, outcome.failed) == (10, 0, 0)
    assert flaky.calls == [10, 3, 3]
    assert landing.waiting() == (0, 0)


def test_repeatedly_failing_entries_are_counted(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(4)))
    queue = landing.queue()
    messages = receive_all(queue, 4)
    queue._client = FlakyDeletes(queue._client, failures=99)
    outcome = queue.delete(messages)
    assert (outcome.succeeded, outcome.failed) == (1, 3)


def test_an_expired_receipt_is_not_retried(landing: Any) -> None:
    landing.send(*(landing.notification(f"games/{number}") for number in range(4)))
    queue = landing.queue()
    messages = receive_all(queue, 4)
    queue._client = flaky = FlakyDeletes(queue._client, failures=1, sender_fault=True)
    outcome = queue.delete(messages)
    assert (outcome.succeeded, outcome.expired, outcome.failed) == (1, 3, 0)
    assert flaky.calls == [4]
