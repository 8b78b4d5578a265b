"""Weights on their way over TCP: every byte, to whoever shows the token, and no hanging on those that have gone."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gymnast.trainer.vllm.over_tcp import Offer, WeightListener, fetch_weights
from gymnast.trainer.vllm.serve import with_defaults

WEIGHTS: dict[str, Tensor] = {
    "matrix": torch.randn(300, 70),
    "transposed": torch.randn(40, 50).t(),
    "bf16": torch.randn(17).bfloat16(),
    "scalar": torch.tensor(3.5),
    "counts": torch.arange(5),
    "nothing": torch.empty(0, 4),
    "trained": torch.nn.Parameter(torch.randn(3)),
}


def test_several_workers_fetch_the_same_weights() -> None:
    with WeightListener(WEIGHTS) as listener, ThreadPoolExecutor(4) as workers:
        offer = Offer(**listener.offer("127.0.0.1"))
        for found in workers.map(lambda _: dict(fetch_weights(offer)), range(4)):
            assert list(found) == list(WEIGHTS)
            assert all(found[name].dtype == value.dtype and found[name].equal(value) for name, value in WEIGHTS.items())


def test_nobody_gets_weights_without_the_token() -> None:
    with WeightListener(WEIGHTS) as listener:
        offer = Offer(**listener.offer("127.0.0.1"))
        with pytest.raises(ConnectionError):
            dict(fetch_weights(replace(offer, token="0" * 32)))
        assert dict(fetch_weights(offer))


def test_a_worker_that_stands_still_does_not_hold_up_the_end() -> None:
    """The kernel takes a few megabytes; nobody reads the rest."""
    with WeightListener({"large": torch.zeros(1 << 24)}) as listener:
        offer = Offer(**listener.offer("127.0.0.1"))
        worker = socket.create_connection((offer.host, offer.port))
        worker.sendall(offer.token.encode())
        assert worker.recv(1)
    worker.settimeout(10)
    with worker:
        received = 1 + _drain(worker)
    assert received < 1 << 26


def _drain(connection: socket.socket) -> int:
    """The bytes that come before the end."""
    count = 0
    try:
        while data := connection.recv(1 << 20):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


def test_a_trainer_that_has_gone_is_noticed() -> None:
    with WeightListener(WEIGHTS) as listener:
        offer = Offer(**listener.offer("127.0.0.1"))
    with pytest.raises(ConnectionError):
        dict(fetch_weights(offer))


def test_options_of_the_user_go_before_ours() -> None:
    defaults = {"--dtype": "float32", "--enforce-eager": None, "--block-size": "32"}
    assert with_defaults(["m"], defaults) == ["m", "--dtype", "float32", "--enforce-eager", "--block-size", "32"]
    given = ["m", "--dtype=bfloat16", "--no-enforce-eager", "--block_size", "64"]
    assert with_defaults(given, defaults) == given
