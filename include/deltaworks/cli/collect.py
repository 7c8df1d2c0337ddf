"""`deltaworks collect`: the collector as an HTTP endpoint on this machine, in front of a Kinesis stream."""

from __future__ import annotations

import typer
from botocore.exceptions import ClientError

from deltaworks.cli.context import catalog
from deltaworks.cli.output import line
from deltaworks.control.aws_sessions import aws_session


def collect(
    stream: str = typer.Option(..., help="The Kinesis stream that takes the events."),
    host: str = typer.Option("127.0.0.1", help="The address it listens on."),
    port: int = typer.Option(8090, min=0, max=65_535, help="The port it listens on; 0 takes a free one."),
    create_shards: int = typer.Option(
        0, min=0, max=200, help="Create the stream with so many shards where it is absent."
    ),
) -> None:
    """Take events over HTTP, stamp them with the time and put them into a stream, until it is stopped.

    The same handler runs as an AWS Lambda: collector.handler.handle.
    """
    import uvicorn

    from collector.endpoint import endpoint
    from collector.handler import Collector
    from collector.stream_writer import StreamWriter

    client = aws_session().client("kinesis", **catalog(needs="messaging").environment.messaging.boto3_options())
    if create_shards:
        _create(client, stream, create_shards)
    line(f"POST http://{host}:{port}/v1/events puts events into {stream}. Ctrl-C ends it.")
    uvicorn.run(endpoint(Collector(StreamWriter(client, stream))), host=host, port=port, log_level="warning")


def _create(client: object, stream: str, shards: int) -> None:
    try:
        client.create_stream(StreamName=stream, ShardCount=shards)  # type: ignore[attr-defined]
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceInUseException":
            raise
    client.get_waiter("stream_exists").wait(StreamName=stream)  # type: ignore[attr-defined]
