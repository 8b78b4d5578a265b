"""A fake engine that can misbehave: a server on a unix socket."""

from __future__ import annotations

import http.server
import json
import socketserver


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
