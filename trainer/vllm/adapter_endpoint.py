"""AdapterEndpoint: the part of a vLLM server that takes the LoRA adapter in training, and tells the server's abilities.

vLLM itself loads an adapter only from a folder of the server's machine. `gymnast serve vllm` adds this endpoint to its
server, by vLLM's option `--middleware`. It tells the largest rank and the backend for pictures, and `POST` replaces the
adapter.
"""

# pyright: reportMissingImports=false
# vLLM is an optional dependency, and Starlette is one of vLLM's, so they are imported inside functions.

from __future__ import annotations

import logging
import tarfile
import tempfile
from io import BytesIO
from typing import Any

from .lora import NAME, NUMBER
from .private_api import image_backend, largest_rank, serve_adapter

PATH = "gymnast/adapter"

logger = logging.getLogger(__name__)


class AdapterEndpoint:
    """ASGI middleware that answers one path; all other requests go to vLLM's application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the adapter that is served

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != f"/{PATH}":
            await self._app(scope, receive, send)
            return
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        state = scope["app"].state
        response = JSONResponse({"max_lora_rank": largest_rank(state), "image_backend": image_backend(state)})
        if scope["method"] == "POST":
            try:
                await self._replace(state, Request(scope, receive))
            except Exception as error:  # of any class, from vLLM's workers; the trainer raises it
                logger.exception("the adapter was not loaded")
                response = JSONResponse({"error": {"message": f"{type(error).__name__}: {error}"}}, status_code=500)
        await response(scope, receive, send)

    async def _replace(self, state: Any, request: Any) -> None:
        unused = folder = tempfile.TemporaryDirectory(prefix="gymnast-adapter-")
        try:
            with tarfile.open(fileobj=BytesIO(await request.body())) as archive:
                archive.extractall(folder.name, filter="data")
            await serve_adapter(state, NAME, NUMBER, folder.name)
            unused, self._folder = self._folder, folder  # vLLM may read it again
        finally:
            if unused is not None:
                unused.cleanup()
