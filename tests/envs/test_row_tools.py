"""A row's column `tools`: names or JSON schemas, as lists or as JSON text."""

from __future__ import annotations

import json
from typing import Any

import datasets
import pytest

from gymnast.envs import Calculator, ConfigurationError, RolloutEngine, ScriptedPolicy, ToolEnv, tool_call
from gymnast.envs.adapters import MCPTools

from .episodes import tool_contents
from .mcp_servers import make_server
from .tool_env_steps import QUESTION, contents


def schema(name: str, **changes: Any) -> dict[str, Any]:
    """A schema as data for supervised fine-tuning has it, with changes of its function."""
    numbers = {name: {"type": "integer", "description": f"Number {name}."} for name in "ab"}
    parameters = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    function = {"name": name, "description": "Of two numbers.", "parameters": parameters, **changes}
    return {"type": "function", "function": function}


def reset(environment: ToolEnv, tools: Any) -> ToolEnv:
    environment.reset(seed=0, options={"task": {**QUESTION, "prompt": "go", "tools": tools}})
    return environment


@pytest.mark.parametrize(
    "column",
    [
        ["multiply", "add"],
        json.dumps(["multiply", "add"]),
        [schema("multiply"), schema("add")],
        json.dumps([schema("multiply"), schema("add")]),
        [schema("multiply"), "add"],
    ],
    ids=["names", "names as text", "schemas", "schemas as text", "both"],
)
def test_a_row_narrows_the_tools(column: Any) -> None:
    environment = reset(Calculator(), column)
    assert list(environment.tools) == ["multiply", "add"]
    assert contents(environment.step(tool_call("multiply", a=2, b="3"))) == ["6"]
    assert contents(environment.step(tool_call("subtract", a=1, b=2))) == [
        "Error: there is no tool 'subtract'. The tools are: multiply, add."
    ]
    assert list(reset(environment, None).tools) == ["add", "subtract", "multiply", "final_answer"]
    assert list(reset(environment, []).tools) == []


def test_the_model_sees_the_rows_schema_and_the_function_checks_the_arguments() -> None:
    shown = schema("add", strict=True)
    shown["function"]["parameters"]["properties"]["a"]["enum"] = [1, 2]
    environment = reset(Calculator(), [shown, {"type": "function", "function": {"name": "subtract"}}])
    assert environment.tool_schemas() == [shown, Calculator().tools["subtract"].schema]
    assert json.dumps(environment.tool_schemas()[0]) == json.dumps(shown)  # in the order in which a template writes it
    assert contents(environment.step(tool_call("add", a=7, b=1))) == ["8"]
    [wrong] = contents(environment.step(tool_call("add", a="seven", b=1)))
    assert wrong.startswith("Error: add: argument 'a': Input should be a valid integer")


def test_a_row_does_not_make_a_final_tool_another() -> None:
    answer = {"type": "object", "properties": {"answer": {"type": "integer"}}}
    environment = reset(Calculator(), [schema("final_answer", parameters=answer)])
    assert environment.step(tool_call("final_answer", answer=6)).terminated


def test_schemas_of_a_table_have_no_empty_entries() -> None:
    answer = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    rows = datasets.Dataset.from_list(
        [{**QUESTION, "tools": [schema("add")]}, {**QUESTION, "tools": [schema("final_answer", parameters=answer)]}]
    )
    assert rows[0]["tools"][0]["function"]["parameters"]["properties"]["answer"] is None
    assert reset(Calculator(), rows[0]["tools"]).tool_schemas() == [schema("add")]


def test_a_row_may_choose_tools_of_a_server() -> None:
    by = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
    engine = RolloutEngine(ToolEnv([MCPTools(make_server)]), ScriptedPolicy([tool_call("add", by=2), "bye"]))
    [episode] = engine.play([{"prompt": "go", "tools": [schema("add", parameters=by)]}])
    assert episode.tools == [schema("add", parameters=by)]
    assert tool_contents(episode) == ["2"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            ["add", "multiplly"],
            r"'tools' of Calculator: there is no tool 'multiplly'. Did you mean 'multiply'\? The tools are: add,",
        ),
        ([schema("divide")], "'tools' of Calculator: there is no tool 'divide'. The tools are: add,"),
        (
            "add",
            "the row's 'tools' must be a list of names of tools of Calculator, or of their JSON schemas.*got 'add'",
        ),
        (3, "must be a list of names .*; or such a list as JSON text; got 3"),
        ([{"type": "function"}], "must be a list of names"),
        ([{"name": "add", "parameters": {}}], "must be a list of names"),
        ([schema("add", parameters={"a": {"type": "int"}})], r"of 'add' lacks the parameter 'a', so every call"),
        ([schema("add", parameters=["a", "b"])], "has parameters that are not a JSON schema"),
        (
            [schema("final_answer")],
            r"schema of 'final_answer' has the parameter 'a', so every call by it would be refused: the function takes "
            r"\['answer'\], and needs \['answer'\]",
        ),
    ],
)
def test_a_wrong_choice_is_refused(column: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        reset(Calculator(), column)
    assert not isinstance(raised.value, ConfigurationError)  # other rows may be right
