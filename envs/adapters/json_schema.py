"""Tools that a server describes by JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..core import ConfigurationError
from ..tools.tool import Tool


def name_for_model(name: str) -> str:
    """Return a tool's name as model servers take it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def described_tool(
    name: str,
    description: str,
    schema: dict[str, Any],
    call: Callable[[dict[str, Any]], Awaitable[Any]],
    *,
    timeout: float | None = None,
) -> Tool:
    """Return a tool that a server describes. Its arguments are checked here, so that a wrong call counts as one.

    Raises:
        ConfigurationError: the schema is not a JSON schema.
    """

    async def function(**arguments: Any) -> Any:
        return await call(arguments)

    return Tool(
        name=name_for_model(name),
        description=description,
        parameters=schema,
        function=function,
        timeout=timeout,
        validator=_validator(name, schema),
    )


def _validator(name: str, schema: dict[str, Any]) -> TypeAdapter[Any]:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ConfigurationError(f"the schema of the server's tool {name!r} is wrong: {error.message}") from error
    validator = kind(schema)

    def check(arguments: dict[str, Any]) -> dict[str, Any]:
        faults = [fault for error in validator.iter_errors(arguments) for fault in _faults(error)]
        if faults:
            raise ValidationError.from_exception_data(name, faults)
        return arguments

    return TypeAdapter(Annotated[dict[str, Any], AfterValidator(check)])


def _faults(error: Any) -> list[InitErrorDetails]:
    """Return an error of jsonschema in pydantic's terms, which `checked_arguments` explains to the model."""
    place = tuple(error.absolute_path)
    if error.validator == "required":
        names = [name for name in error.validator_value if name not in error.instance]
        return [InitErrorDetails(type="missing", loc=(*place, name), input=error.instance) for name in names]
    if error.validator == "additionalProperties":
        extra = _extra(error).items()
        return [InitErrorDetails(type="extra_forbidden", loc=(*place, name), input=value) for name, value in extra]
    kind = PydanticCustomError("json_schema", "{problem}", {"problem": error.message})
    return [InitErrorDetails(type=kind, loc=place, input=error.instance)]


def _extra(error: Any) -> dict[str, Any]:
    """Return the properties that the schema does not know."""
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    return {
        name: value
        for name, value in error.instance.items()
        if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    }
