"""A fake engine that can misbehave: a server on a unix socket."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


class CounterfeitEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves one socket, a thread for each connection."""

    daemon_threads = True


class EngineAnswers(http.server.BaseHTTPRequestHandler):
    """A subclass answers GET, POST and DELETE."""

    def answer(self, status: int, content: object = None) -> None:
        data = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "a client"  # the address of a unix socket is empty

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def counterfeit(answers: type[EngineAnswers], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a fake engine with these answers the engine of this process; its socket is in the folder."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/engine.sock")
    with CounterfeitEngine(f"{folder}/engine.sock", answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
