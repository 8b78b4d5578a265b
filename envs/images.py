"""Image: a picture as the bytes of its file.

A picture may come from untrusted code, so its size is read from the file's header before anything is decoded. Pillow
reads and writes the files; it is imported when the first picture is made.
"""

from __future__ import annotations

import base64
import binascii
import io
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import SchemaSerializer, core_schema

from .extras import needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    import PIL.Image

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
MAX_BYTES = 32 * 2**20
MAX_PIXELS = 2**25  # 8192 x 4096
MAX_RATIO = 100  # of the longer to the shorter side; processors of models refuse 200 and more


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in the format that it came in: PNG, JPEG, GIF (its first frame) or WebP. See `of` for other forms.

    Raises:
        TypeError: `data` is not bytes.
        ValueError: the data is of no such format, has more than `MAX_BYTES` or `MAX_PIXELS`, or is too narrow.
    """

    data: bytes = field(repr=False, compare=False)
    media_type: str = field(init=False)  # such as "image/png"
    width: int = field(init=False)
    height: int = field(init=False)
    digest: str = field(init=False)  # SHA-256 of the data; images with the same digest are equal

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise TypeError(f"an image is made from the bytes of a picture, got {type(self.data).__name__}")
        if len(self.data) > MAX_BYTES:
            raise ValueError(f"a picture may have {MAX_BYTES} bytes, got {len(self.data)}: make it smaller")
        with _opened(self.data) as picture:
            width, height = picture.size
            media_type = FORMATS[str(picture.format)]
        if width * height > MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
            raise ValueError(
                f"a picture may have {MAX_PIXELS} pixels, and its sides may differ {MAX_RATIO}-fold, got "
                f"{width}x{height}: make it smaller"
            )
        found = {"media_type": media_type, "width": width, "height": height, "digest": sha256(self.data).hexdigest()}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, value: Any) -> Image:
        """Return the image of a picture in any form that users have; a damaged file is refused.

        Args:
            value: An `Image`, a PIL image, an array of uint8 (H, W), (H, W, 3) or (H, W, 4), the bytes of a file, its
                `Path`, a data URI, or a mapping with its "bytes", as data sets of Hugging Face have it.

        Raises:
            TypeError, ValueError: it is none of these, or the picture is refused as in the constructor.
            OSError: the file cannot be read.
        """
        if isinstance(value, Image):
            return value
        if is_picture(value) or hasattr(value, "__array_interface__"):
            return cls(_as_png(value))
        if isinstance(value, Mapping):
            value = value.get("bytes")  # its path is not read: it may be a text that the model wrote
        if isinstance(value, Path):
            if value.stat().st_size > MAX_BYTES:
                raise ValueError(f"a picture may have {MAX_BYTES} bytes, {value} has {value.stat().st_size}")
            value = value.read_bytes()
        elif isinstance(value, str):
            value = _of_data_uri(value)
        image = cls(bytes(value) if isinstance(value, bytearray | memoryview) else value)
        image.open()
        return image

    def open(self) -> PIL.Image.Image:
        """Decode the picture: RGB, of Pillow.

        Raises:
            ValueError: the file is damaged.
        """
        with _opened(self.data) as picture:
            return picture.convert("RGB")

    def at_most(self, max_pixels: int) -> Image:
        """Return the picture itself, or a smaller one (PNG) with the same proportions and at most so many pixels."""
        scale = (max_pixels / (self.width * self.height)) ** 0.5
        if scale >= 1:
            return self
        width, height = (max(1, int(side * scale)) for side in (self.width, self.height))
        size = max(width, -(-height // MAX_RATIO)), max(height, -(-width // MAX_RATIO))
        return Image(_as_png(self.open().resize(size)))

    @property
    def plain(self) -> Image:
        """The picture itself if all programs show its pixels as `open` does, else a PNG of these pixels.

        Others have a palette, transparency, or are to be turned.
        """
        with _opened(self.data) as picture:
            is_plain = picture.mode == "RGB" and picture.getexif().get(0x0112, 1) == 1  # the orientation of a photo
        return self if is_plain else Image.of(self.open())

    @property
    def data_uri(self) -> str:
        """The picture as a data URI, as servers of the OpenAI protocol take it."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"

    @property
    def file_name(self) -> str:
        """The name of its file in a folder of pictures, `DIGEST.png`."""
        return f"{self.digest}.{self.media_type.partition('/')[2]}"

    def save(self, folder: Path) -> None:
        """Write its file into a folder of pictures, which is made, unless it is there."""
        path = folder / self.file_name
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f".{secrets.token_hex(8)}"  # others may write the same picture at this moment
            unfinished.write_bytes(self.data)
            unfinished.replace(path)

    def __str__(self) -> str:
        return f"[image {self.width}x{self.height}]"

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(_written, info_arg=True)
        return core_schema.with_info_plain_validator_function(
            lambda value, info: value if isinstance(value, Image) else read_image(value, info.context),
            serialization=written,
        )


def _written(image: Image, info: Any) -> dict[str, Any]:
    """Return the image as JSON: its data as base64, or its digest alone if the context is a dict, which takes it."""
    facts = {name: getattr(image, name) for name in ("digest", "media_type", "width", "height")}
    if info.context is None:
        return {"data": base64.b64encode(image.data).decode(), **facts}
    info.context[image.digest] = image
    return facts


def read_image(value: Mapping[str, Any], folder: Path | None) -> Image:
    """Return an image from its JSON, with its data or with the digest of a file in the folder.

    Raises:
        ValueError: there is no such file, or it holds another picture.
    """
    if "data" in value:
        return Image(base64.b64decode(value["data"]))
    name = f"{value['digest']}.{value['media_type'].partition('/')[2]}"
    if folder is None:
        raise ValueError(f"the record names the picture {name} and does not hold it: give its folder as images=")
    try:
        image = Image((folder / name).read_bytes())
    except OSError as error:
        raise ValueError(f"the record names a picture that cannot be read: {error}") from None
    if image.digest != value["digest"]:
        raise ValueError(f"another picture than the recorded one is in {folder / name}")
    return image


# Pydantic looks for it where an image stands in a value of any type, such as a part of a message.
Image.__pydantic_serializer__ = SchemaSerializer(Image.__get_pydantic_core_schema__())  # type: ignore[attr-defined]


def is_picture(value: Any) -> bool:
    """Return whether this is an `Image`, or an image of Pillow, which is not imported for it."""
    return isinstance(value, Image) or any(base.__module__ == "PIL.Image" for base in type(value).__mro__)


@contextmanager
def _opened(data: bytes) -> Iterator[PIL.Image.Image]:
    """Open a file in one of the four formats; all errors of Pillow in this context become a ValueError."""
    with needs_extra("vision", "a picture"):
        import PIL.Image
    try:
        with PIL.Image.open(io.BytesIO(data), formats=list(FORMATS)) as picture:
            yield picture
    except Exception as error:  # damaged files make Pillow raise anything
        raise ValueError(
            f"a picture must be a whole file of {', '.join(FORMATS)}, got {len(data)} bytes that begin with "
            f"{data[:12]!r} ({type(error).__name__})"
        ) from error


def _as_png(value: Any) -> bytes:
    with needs_extra("vision", "a picture"):
        import PIL.Image
    if not is_picture(value):
        if str(value.dtype) != "uint8" or value.ndim not in (2, 3):
            raise ValueError(
                f"a picture is an array of uint8 (height, width, 3), got {value.dtype} of shape {tuple(value.shape)}: "
                f"convert it, such as (255 * array).astype('uint8')"
            )
        value = PIL.Image.fromarray(value)
    file = io.BytesIO()
    value.convert("RGB").save(file, "PNG")
    return file.getvalue()


def _of_data_uri(text: str) -> bytes:
    head, _, data = text.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise ValueError(
            f"a picture as text must be a data URI, data:image/png;base64,..., got {text[:40]!r}: give a Path for a "
            f"file; the web is not read"
        )
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the data URI of a picture is not base64: {error}") from None


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a message's content; none if it is text."""
    content = message.get("content")
    return content if isinstance(content, list) else []


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[Image]:
    """Return the pictures in these messages, in order."""
    found = (part.get("image") for message in messages for part in parts_of(message))
    return [image for image in found if isinstance(image, Image)]


def with_parts(message: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the message with `change` of each part of its content; a message of text stays."""
    return {**message, "content": [*map(change, parts)]} if (parts := parts_of(message)) else message


def checked_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a message, with an `Image` if it is a picture in any form.

    A picture has the type "image", and stands as "image", "base64", "url" or "path"; or it is OpenAI's "image_url".

    Raises:
        TypeError, ValueError, OSError: as in `Image.of`.
    """
    kind = part["type"]
    if kind not in ("image", "image_url"):
        return part
    given = part.get(kind, part.get("url", part.get("path")))  # text of a path is refused: a model may have written it
    if "base64" in part:
        given = f"data:image;base64,{part['base64']}"
    elif kind == "image_url" and isinstance(given, Mapping):
        given = given.get("url")
    return {"type": "image", "image": Image.of(given)}
