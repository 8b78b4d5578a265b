"""A stand-in for the Hugging Face Hub: serves the data sets of a folder, and takes the models that are pushed."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

REVISION = "0" * 40
REVISIONS = (REVISION, "main", "v1", "refs/convert/parquet")


class _Hub(BaseHTTPRequestHandler):
    """Answers for `folder/me/NAME`, a folder for each repository; `me/gated` asks for a token.

    Each has one commit, which is its branch `main`, its tag `v1` and `refs/convert/parquet`, too.
    """

    folder: Path
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = unquote(self.path.partition("?")[0])
        if "/me/gated" in path:
            return self._answer({"error": "it is gated"}, status=401, **{"X-Error-Code": "GatedRepo"})
        repository = r"/(?:api/)?(?:datasets|models)/(me/[^/]+)"
        if path == "/api/repos/create":
            return self._answer({"url": f"http://{self.headers['Host']}/me/{json.loads(sent)['name']}"})
        if path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if match := re.fullmatch(repository + "/preupload/main", path):
            names = [file["path"] for file in json.loads(sent)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return self._answer({"files": files})
        if match := re.fullmatch(repository + "/commit/main", path):
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    target = self.folder / match[1] / line["value"]["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(base64.b64decode(line["value"]["content"]))
            return self._answer({"commitUrl": f"http://{self.headers['Host']}/{match[1]}", "commitOid": REVISION})
        match = re.match(repository, path)
        if match is None or not (root := self.folder / match[1]).is_dir():
            return self._answer({"error": "not found"}, status=404, **{"X-Error-Code": "RepoNotFound"})
        asked = re.search(r"/(?:revision|resolve|tree)/([^/?]+)", self.path)
        if asked and unquote(asked[1]) not in REVISIONS:
            return self._answer({"error": "no such revision"}, status=404, **{"X-Error-Code": "RevisionNotFound"})
        files = {str(file.relative_to(root)): file for file in sorted(root.rglob("*")) if file.is_file()}
        if found := re.fullmatch(repository + r"/resolve/\w+/(.+)", path):
            if found[2] not in files:
                return self._answer({"error": "no such file"}, status=404, **{"X-Error-Code": "EntryNotFound"})
            return self._answer(files[found[2]].read_bytes(), ETag=f'"{found[2]}"')
        listed = [{"type": "file", "path": name, "size": 1, "oid": name} for name in files]
        if f"/tree/{REVISION}" in path:
            return self._answer(listed)
        self._answer({"id": match[1], "sha": REVISION, "siblings": [{"rfilename": name} for name in files]})

    do_HEAD = do_POST = do_GET

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": REVISION, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Serve a folder; yields the environment variables with which another process uses it in place of the Hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"folder": folder}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        yield {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "home"), "HF_TOKEN": "hf_token"}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
