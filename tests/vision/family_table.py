"""The table of docs/families.md about models that see: what the probe of a tiny model of each family finds."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch

from gymnast.envs import Message
from gymnast.trainer import ChatFormat
from gymnast.trainer.models.images import ImageEncoder, positions

from ..envs.pictures import picture
from .families import FAMILIES, make

HEAD = ("Family", "A picture of 64x48 becomes", "Features", "Positions", "Roles that show pictures")


def image_table() -> str:
    """Return the table in Markdown."""
    rows = [HEAD, ("---",) * len(HEAD), *map(_row, FAMILIES)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(family: str) -> tuple[str, ...]:
    processor, model = make(family)
    encoder, image = ImageEncoder(processor), picture(1, width=64, height=48)
    chat = ChatFormat(processor.tokenizer, images=encoder)
    part = {"type": "image", "image": image}
    shown: list[Message] = [{"role": "user", "content": [part]}]
    tokens = chat.prompt_tokens(shown, [])
    [span] = tokens.images
    ids_BL = torch.tensor([tokens.ids])
    made = encoder.inputs(ids_BL, torch.ones_like(ids_BL), [[image]])
    features = (f"`{name}` {tuple(made[name].shape)}" for name in made.keys() - {"input_ids", "attention_mask"})
    kind = "plain" if positions(model, made).ndim == 2 else "M-RoPE, 3 axes"
    written = processor.tokenizer.convert_ids_to_tokens(tokens.ids[span.start : span.end])
    return f"`{family}`", _runs(written), ", ".join(sorted(features)), kind, ", ".join(_roles(chat, part))


def _runs(tokens: list[str]) -> str:
    """Return tokens with the number of equal neighbours."""
    runs = [
        (len([*run]), re.sub("[Ċ\n]", r"\\n", token).replace("|", r"\|")) for token, run in itertools.groupby(tokens)
    ]
    return " ".join(f"`{token}`" if count == 1 else f"{count} × `{token}`" for count, token in runs)


def _roles(chat: ChatFormat, part: dict[str, Any]) -> list[str]:
    """Return the roles in whose messages an observation shows a picture."""
    question, answer = {"role": "user", "content": "Look."}, {"role": "assistant", "content": "I look."}
    found = []
    for role in ("user", "tool"):
        message: Any = {"role": role, "content": [part], **({"name": "look"} if role == "tool" else {})}
        messages: Any = [question, answer, message]
        if "\ufdd1" in chat.template.render(messages, tools=chat.template.probe_tools([message])):
            found.append(role)
    return found
