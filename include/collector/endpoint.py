"""A local HTTP endpoint in front of the handler, as API Gateway is in front of the Lambda.

`POST /v1/events` takes one event, or JSON lines of events with `Content-Type: application/x-ndjson`.
"""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from collector.handler import Collector


def endpoint(collector: Collector) -> FastAPI:
    """The application; run it with uvicorn."""
    app = FastAPI(title="Deltaworks collector", docs_url=None, redoc_url=None)

    @app.post("/v1/events")
    async def events(request: Request) -> Response:
        body = await request.body()
        lines = request.headers.get("content-type", "").startswith("application/x-ndjson")
        bodies = [line for line in body.splitlines() if line.strip()] if lines else [body]
        source_ip = request.client.host if request.client else ""
        wrapped = [_gateway_request(body, source_ip) for body in bodies]
        answer = await run_in_threadpool(collector.take, wrapped)
        return Response(
            answer["body"], answer["statusCode"], headers=answer.get("headers"), media_type="application/json"
        )

    return app


def _gateway_request(body: bytes, source_ip: str) -> dict[str, Any]:
    """What API Gateway would hand to the Lambda."""
    return {
        "resource": "/v1/events",
        "httpMethod": "POST",
        "body": body.decode("utf-8", "backslashreplace"),
        "headers": {"Content-Type": "application/json"},
        "requestContext": {"stage": "local", "requestId": uuid.uuid4().hex, "identity": {"sourceIp": source_ip}},
    }
