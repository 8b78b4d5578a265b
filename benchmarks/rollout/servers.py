"""Measures which share of conversations the prefix caches of three vLLM servers hold, beside those of one server.

    .venv-vllm/bin/python -m benchmarks.rollout.servers

Three servers compute a conversation again whenever it moves, so episodes stay on theirs: the share should be at least
0.9 of that of one server. It starts the servers itself, with a tiny untrained model, and takes 5 GB of memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

from .with_vllm import QUESTION, prefixes

PORT, COUNT = 8101, 3
EPISODES = 64
CONTEXT = 2048
END_SECONDS = 20


def main() -> None:
    tokenizer = make_tiny_tokenizer([QUESTION] * 3)
    model = make_tiny_model(tokenizer)
    shares = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with servers(folder) as urls:
            for count in (1, COUNT):
                options = {"generator": "vllm-server", "vllm_server_urls": urls[:count], "max_model_len": CONTEXT}
                seen = prefixes(model, tokenizer, EPISODES, **options)
                shares[count] = seen["cached"] / seen["known"]
                print(f"{count} servers hold {shares[count]:.1%} of the tokens of earlier turns", flush=True)
    print(json.dumps({"one": shares[1], "three": shares[COUNT], "ratio": shares[COUNT] / shares[1]}))


@contextmanager
def servers(folder: str) -> Iterator[list[str]]:
    """The addresses of servers that end with this context; the trainer waits for them."""
    options = ["--max-model-len", str(CONTEXT), "--kv-cache-memory-bytes", str(256 << 20), "--host", "127.0.0.1"]
    ports = range(PORT, PORT + COUNT)
    commands = [[sys.executable, "-m", "gymnast.trainer.vllm.serve", folder, "--port", str(port)] for port in ports]
    running = [subprocess.Popen([*command, *options], stdout=sys.stderr) for command in commands]
    try:
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        for server in running:
            server.terminate()
        for server in running:
            try:
                server.wait(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:  # a server that is still starting may not notice
                server.kill()


if __name__ == "__main__":
    main()
