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
        content_type = request.headers.get("content-type", "application/json")
        source_ip = request.client.host if request.client else ""
        answer = await run_in_threadpool(collector.take, _gateway_request(body, content_type, source_ip))
        return Response(
            answer["body"], answer["statusCode"], headers=answer.get("headers"), media_type="application/json"
        )

    return app


def _gateway_request(body: bytes, content_type: str, source_ip: str) -> dict[str, Any]:
    """What API Gateway would hand to the Lambda."""
    return {
        "resource": "/v1/events",
        "httpMethod": "POST",
        "body": body.decode("utf-8", "backslashreplace"),
        "headers": {"Content-Type": content_type},
        "requestContext": {"stage": "local", "requestId": uuid.uuid4().hex, "identity": {"sourceIp": source_ip}},
    }
