"""`Image`: pictures in every form that users have, and hostile ones; and their way through an episode."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from pydantic import TypeAdapter

from gymnast.envs import Image, Message, RolloutEngine, ScriptedPolicy, ToolEnv, tool, tool_call
from gymnast.envs.engine.compaction import EARLIER_IMAGE, last_images
from gymnast.trainer.vllm.pictures import content_parts

from ..envs.pictures import picture

CAT = picture(1, width=6, height=4)


def saved(kind: str, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    PIL.Image.new(mode, size).save(file, kind)
    return file.getvalue()


def test_a_picture_comes_in_many_forms(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT.data)
    forms = [CAT, CAT.open(), np.asarray(CAT.open()), CAT.data, path, CAT.data_uri, {"bytes": CAT.data, "path": None}]
    assert [Image.of(form) for form in forms] == [CAT] * len(forms)
    assert (str(CAT), CAT.media_type) == ("[image 6x4]", "image/png")
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        image = Image.of(saved(kind))
        assert (image.width, image.height, image.media_type) == (6, 4, f"image/{kind.lower()}")
    assert CAT.at_most(100) is CAT
    assert str(picture(width=40, height=20).at_most(200)) == "[image 20x10]"
    assert str(picture(width=800, height=8).at_most(600)) == "[image 244x3]"  # no more than 100-fold


HOSTILE: dict[str, tuple[Any, str]] = {
    "another format": (b"<svg>", "must be a whole file of PNG, JPEG, GIF, WEBP, got 5 bytes that begin with b'<svg>'"),
    "Pillow's other formats": (saved("BMP"), "must be a whole file of PNG"),
    "truncated": (picture(width=64, height=64).data[:200], "must be a whole file of PNG"),
    "narrow": (saved("PNG", (1, 101)), "sides may differ 100-fold, got 1x101"),
    "a bomb": (saved("PNG", (8193, 8193), "1"), "may have 33554432 pixels.*, got 8193x8193"),
    "large": (bytes(2**25 + 1), "may have 33554432 bytes, got 33554433"),
    "the web": ("https://a.b/c.png", "must be a data URI, data:image/png;base64.*, got 'https://a.b/c.png'"),
    "not base64": ("data:image/png;base64,???", "not base64"),
    "floats": (np.zeros((3, 3, 3)), "an array of uint8 .*, got float64 of shape"),
    "a path as text": ("/etc/hostname", "must be a data URI.*: give a Path for a file"),
    "a path of a mapping": ({"path": "/etc/hostname"}, "from the bytes of a picture, got NoneType"),
    "a number": (3, "from the bytes of a picture, got int"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_picture_is_refused_by_name_and_told_to_the_model(kind: str) -> None:
    value, message = HOSTILE[kind]
    with pytest.raises((TypeError, ValueError), match=message):
        Image.of(value)

    class Camera(ToolEnv):
        @tool
        def shot(self) -> list[Any]:
            """Take a picture."""
            return [{"type": "image", "image": value}]

        @tool(final=True)
        def done(self) -> None:
            """End."""

    [episode] = RolloutEngine(Camera(), ScriptedPolicy([tool_call("shot"), tool_call("done")])).play([{"prompt": "go"}])
    assert [record.outcome for record in episode.tool_calls][1] == "ok"
    assert episode.tool_calls[0].outcome in ("refused", "exception")
    assert episode.failure is None


class Gallery(ToolEnv):
    """Shows pictures."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        parts = [{"type": "text", "text": "Look: "}, {"type": "image", "image": task["image"]}]
        return [{"role": "user", "content": parts}]

    @tool
    def bare(self) -> Image:
        """Return a picture."""
        return CAT

    @tool
    def mixed(self) -> list[Any]:
        """Return a list that mixes text and pictures."""
        return ["a cat", CAT.open(), {"type": "image_url", "image_url": {"url": CAT.data_uri}}]

    @tool(final=True)
    def done(self) -> None:
        """End."""


def test_pictures_of_rows_and_tools_are_images_in_the_messages() -> None:
    script = [tool_call("bare"), tool_call("mixed"), tool_call("done")]
    row = {"image": {"bytes": CAT.data, "path": None}}  # as a data set of Hugging Face gives it
    [episode] = RolloutEngine(Gallery(), ScriptedPolicy(script)).play([row])
    part = {"type": "image", "image": CAT}
    assert episode.prompt[0].get("content") == [{"type": "text", "text": "Look: "}, part]
    results = [turn.observation[0].get("content") for turn in episode.turns]
    assert results == [[part], [{"type": "text", "text": "a cat"}, part, part], "null"]
    assert "bare() -> [image 6x4]" in str(episode) or "[image 6x4]" in repr(episode._repr_html_())  # type: ignore[attr-defined]


def test_a_picture_is_a_field_of_a_users_own_class() -> None:
    assert TypeAdapter(Image).validate_python(CAT) is CAT


def test_the_latest_pictures_stay_where_a_part_has_none() -> None:
    odd, older, latest = {"type": "image"}, {"type": "image", "image": CAT}, {"type": "image", "image": picture(2)}
    keep_one: Any = last_images(1)
    [message] = keep_one([{"role": "user", "content": [odd, older, latest]}])
    assert message.get("content") == [odd, {"type": "text", "text": EARLIER_IMAGE}, latest]


def test_a_wrong_picture_of_a_row_fails_the_reset_by_name() -> None:
    row = {"image": base64.b64encode(CAT.data).decode()}
    [episode] = RolloutEngine(Gallery(), ScriptedPolicy([tool_call("done")])).play([row])
    assert episode.failure is not None
    assert episode.failure.kind == "reset: ValueError"
    assert "Gallery.reset() gave a picture that cannot be shown: a picture as text must be" in episode.failure.message


@pytest.mark.parametrize(
    ("mode", "turned", "plain"), [("RGB", 1, True), ("RGBA", 1, False), ("P", 1, False), ("RGB", 6, False)]
)
def test_a_picture_that_programs_show_differently_is_sent_to_vllm_as_the_model_sees_it(
    mode: str, turned: int, plain: bool
) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = turned
    file = io.BytesIO()
    picture(1, width=8, height=4).open().convert(mode).save(file, "PNG", exif=exif)
    image = Image(file.getvalue())
    [part] = content_parts([image])
    sent = Image.of(part["url"])
    assert (image.plain is image, sent == image, sent.plain is sent) == (plain, plain, True)
    assert sent.open().tobytes() == image.open().tobytes()
    assert part["uuid"] == image.digest
