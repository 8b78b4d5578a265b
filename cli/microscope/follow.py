"""PageServer: the page of a run that still grows, on this machine only."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

from ...records.files.run import Run
from .index import index_of, to_json
from .page import chunk, page


class PageServer(ThreadingHTTPServer):
    """Serves the page on the loopback interface.

    A web page of another site can send requests here, too. It must not read a run: a request must name this server as
    its host (else a name that points to 127.0.0.1 could reach it), and must not come from another origin.

    Args:
        run: A run that was read; each question about the index reads what is new.
        port: 0 = any free one.
    """

    daemon_threads = True  # a browser may keep a connection open

    def __init__(self, run: Run, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.run = run
        self.lock = Lock()  # a run is read by one thread at a time

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        return {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}


class _Handler(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        if not self._is_trusted():
            self.send_error(HTTPStatus.FORBIDDEN, "another host or origin")
            return
        address = urlsplit(self.path)
        try:
            with self.server.lock:  # which is free again before the answer is sent: a browser may be slow to take it
                answer = self._answer(address.path, parse_qs(address.query))
        except ValueError as error:  # not a number
            self.send_error(HTTPStatus.BAD_REQUEST, explain=str(error))
            return
        if answer is HTTPStatus.NO_CONTENT:
            self.send_response(answer)
            self.end_headers()
        elif isinstance(answer, HTTPStatus):
            self.send_error(answer)
        else:
            self._send(*answer)

    def _is_trusted(self) -> bool:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "none")
        return host in self.server.hosts and origin in (None, f"http://{host}") and site in ("none", "same-origin")

    def _answer(self, path: str, query: dict[str, list[str]]) -> tuple[str, bytes] | HTTPStatus:
        """Return the content's type and the content, or the status that says why there is none."""
        run = self.server.run
        match path.split("/")[1:]:
            case [""]:
                run.read()
                return "text/html; charset=utf-8", "".join(page(run, follows=True)).encode()
            case ["index"]:
                run.read()
                if query.get("since") == [str(run.changes)]:
                    return HTTPStatus.NO_CONTENT
                return "application/json", to_json(index_of(run)).encode()
            case ["chunk", number]:
                return "application/json", chunk(run, int(number))
            case _:
                return HTTPStatus.NOT_FOUND

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "frame-ancestors 'none'",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: requests are not worth a line on the terminal."""
