"""from_smolagents: a tool of smolagents as a tool of a `ToolEnv`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..extras import needs_extra
from ..runtime.user_calls import call_function
from ..tools.tool import Tool
from .json_schema import described_tool
from .smolagents_schemas import listed

NOT_JSON = {"image", "audio"}  # types of smolagents whose values are no JSON; a result may be an image


def from_smolagents(tool: Any) -> Tool:
    """Return a tool of smolagents, for the `tools` of a `ToolEnv`.

        searches = from_smolagents(smolagents.WikipediaSearchTool())
        environment = ToolEnv([searches, final_answer])

    `final_tools=[name]` makes it end the episode. Its exceptions are told to the model. All episodes share the tool,
    in several threads at the same time. For a tool of its own for each episode, call this in `reset_task` and assign
    `self.tools`. An image that it returns is shown to the model.

    Raises:
        MissingExtraError: smolagents is not installed.
        TypeError: it is not a tool of smolagents.
        ValueError: an argument is an image or audio, or the result is audio.
    """
    with needs_extra("smolagents", "from_smolagents"):
        importlib.import_module("jsonschema")
        smolagents = importlib.import_module("smolagents")
    if not isinstance(tool, smolagents.Tool):
        raise TypeError(f"{tool!r} is not a tool of smolagents; a function needs no adapter: ToolEnv([function])")
    if tool.output_type != "image":
        _check_json(tool.name, "result", tool.output_type)

    async def call(arguments: dict[str, Any]) -> Any:
        result = await call_function(tool, **arguments)
        return result.to_raw() if isinstance(result, smolagents.AgentImage) else result  # a picture of Pillow

    return described_tool(tool.name, tool.description, _parameters(tool.name, tool.inputs), call)


def _parameters(name: str, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of the arguments."""
    properties: dict[str, Any] = {}
    for key, described in inputs.items():
        _check_json(name, f"argument {key!r}", described["type"])
        kinds = listed(described["type"])
        if described.get("nullable") and "null" not in kinds:
            kinds = [*kinds, "null"]
        kind = {} if "any" in kinds else {"type": kinds[0] if len(kinds) == 1 else kinds}
        properties[key] = kind | {word: value for word, value in described.items() if word not in ("type", "nullable")}
    required = [key for key, described in inputs.items() if not described.get("nullable")]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _check_json(name: str, place: str, kind: str | list[str]) -> None:
    if unfit := NOT_JSON.intersection(listed(kind)):
        raise ValueError(
            f"the {place} of the smolagents tool {name!r} has the type {unfit.pop()!r}, which has no JSON schema: wrap "
            f"the tool in one that takes and returns text, such as the path of a file"
        )
