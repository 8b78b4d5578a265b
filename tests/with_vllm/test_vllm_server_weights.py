"""Weights over TCP: every byte arrives, only with the token, and a lost side is noticed."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from gymnast.trainer.vllm.over_tcp import Offer, WeightListener, fetch_weights
from gymnast.trainer.vllm.serve import serve_arguments

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


def test_a_worker_of_16_bits_gets_weights_of_16_bits() -> None:
    with WeightListener(WEIGHTS, exact=["scal"]) as listener:
        found = dict(fetch_weights(Offer(**listener.offer("127.0.0.1")), torch.bfloat16))
    expected = WEIGHTS | {name: WEIGHTS[name].bfloat16() for name in ("matrix", "transposed", "nothing", "trained")}
    assert all(found[name].dtype == value.dtype and found[name].equal(value) for name, value in expected.items())


def test_a_worker_without_the_token_gets_no_weights() -> None:
    with WeightListener(WEIGHTS) as listener:
        offer = Offer(**listener.offer("127.0.0.1"))
        with pytest.raises(ConnectionError):
            dict(fetch_weights(replace(offer, token="0" * 32)))
        assert dict(fetch_weights(offer))


def test_a_worker_that_stands_still_does_not_hold_up_the_end() -> None:
    """The kernel takes a few megabytes. The worker never reads the rest."""
    with WeightListener({"large": torch.zeros(1 << 24)}) as listener:
        offer = Offer(**listener.offer("127.0.0.1"))
        worker = socket.create_connection((offer.host, offer.port))
        worker.sendall((offer.token + "float32".ljust(16)).encode())
        assert worker.recv(1)
        leaving = time.monotonic()
    assert time.monotonic() - leaving < 5
    worker.close()


def test_a_trainer_that_has_gone_is_noticed() -> None:
    with WeightListener(WEIGHTS) as listener:
        offer = Offer(**listener.offer("127.0.0.1"))
    with pytest.raises(ConnectionError):
        dict(fetch_weights(offer))


@pytest.mark.parametrize("given", [["m"], ["m", "--dtype=bfloat16", "--no-enforce-eager", "--block_size", "64"]])
def test_options_of_the_user_replace_ours(given: list[str]) -> None:
    """vLLM's own parser reads the options."""
    parser = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    make_arg_parser = import_module("vllm.entrypoints.launchers.cli_args").make_arg_parser
    found = make_arg_parser(parser).parse_args(serve_arguments(given, on_gpu=False)[1:])
    expected = ("float32", True, 32) if len(given) == 1 else ("bfloat16", False, 64)
    assert (found.dtype, found.enforce_eager, found.block_size) == expected
    assert found.model_tag == "m"
    assert (found.enable_chunked_prefill, found.logprobs_mode) == (False, "processed_logprobs")
    assert found.weight_transfer_config.backend == "gymnast"
    assert found.middleware == ["gymnast.trainer.vllm.adapter_endpoint.AdapterEndpoint"]
    assert any("nccl" in argument for argument in serve_arguments(given, on_gpu=True))
