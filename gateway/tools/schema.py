"""Tools as JSON for the agent: definitions and validation of arguments, from type hints by pydantic; results."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, NotRequired, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from gateway.engines.interface import AgentFunction
from gateway.errors import GatewayError, SettingsError
from gateway.tools.remote_settings import TIMEOUT

DEFAULT_TIMEOUT: Final = TIMEOUT
MOST_RESULT_CHARACTERS: Final = 8000
MOST_PROBLEMS: Final = 5
"""Wrong arguments reported to the agent at once."""

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what language models accept
_CUT: Final = " … (cut off here)"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class ArgumentsRefused(GatewayError):
    """The agent passed wrong arguments. The message is written for the agent."""


@dataclass(frozen=True)
class FunctionSchema:
    """The definition of one function, and the validator of its arguments."""

    definition: AgentFunction
    defaults: Mapping[str, Any]
    _arguments: TypeAdapter[dict[str, Any]] = field(repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        description: str,
        parameters: Mapping[str, Any] = _NOTHING,
        *,
        defaults: Mapping[str, Any] = _NOTHING,
        speculative: bool = False,
    ) -> Self:
        """
        Build a schema from the type hint of each parameter; `Annotated[str, "the day"]` adds a description.

        A parameter with a default is optional. Raises SettingsError for a name or type that has no JSON schema.
        """
        if not _NAME.fullmatch(name):
            raise SettingsError("a function's name is up to 64 of the letters a to z, digits and _")
        adapter, schema = _adapter({key: described(hint) for key, hint in parameters.items()}, defaults)
        return cls(AgentFunction(name, description, schema, speculative=speculative), defaults, adapter)

    def parse(self, text: str) -> dict[str, Any]:
        """Validate the agent's JSON and fill in defaults. Raises ArgumentsRefused."""
        try:
            given = self._arguments.validate_json(text.strip() or "{}")
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False, include_context=False)[:MOST_PROBLEMS]
            texts = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in problems]
            raise ArgumentsRefused("; ".join(texts)) from None
        return {**self.defaults, **given}


@dataclass(frozen=True)
class GivenSchema:
    """
    The definition of a function whose JSON schema another program wrote.

    Arguments are checked by name, type and options. The rest is left to that program: its patterns and references
    could keep the event loop busy.
    """

    definition: AgentFunction

    def parse(self, text: str) -> dict[str, Any]:
        """Read the agent's JSON. Raises ArgumentsRefused."""
        try:
            given = json.loads(text.strip() or "{}")
        except (ValueError, RecursionError):
            raise ArgumentsRefused("Invalid JSON") from None
        if not isinstance(given, dict):
            raise ArgumentsRefused("Input should be an object")
        schema = self.definition.parameters
        known: Mapping[str, Any] = schema.get("properties") or {}
        problems = [f"{name}: Field required" for name in schema.get("required") or () if name not in given]
        if schema.get("additionalProperties") is False:
            problems += [f"{name}: Unknown field" for name in given if name not in known]
        problems += [f"{name}: {problem}" for name in given if (problem := _mismatch(given[name], known.get(name)))]
        if problems:
            raise ArgumentsRefused("; ".join(problems[:MOST_PROBLEMS]))
        return given


_JSON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _mismatch(value: object, schema: object) -> str:
    """What is wrong with a value at first sight; empty if nothing is."""
    if not isinstance(schema, dict):
        return ""
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and isinstance(names, list) and all(name in _JSON_TYPES for name in names):
        kinds = tuple(kind for name in names for kind in _JSON_TYPES[name])
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return f"Input should be of type {' or '.join(names)}"
    options = schema.get("enum")
    if isinstance(options, list) and value not in options:
        return f"Input should be one of {json.dumps(options)}"
    return ""


def described(hint: Any, text: str = "") -> Any:
    """The type hint with its own description, else with `text`, in the form that pydantic reads."""
    notes = getattr(hint, "__metadata__", ())
    if any(getattr(note, "description", None) for note in notes):
        return hint
    own = next((note for note in notes if isinstance(note, str)), text)
    return Annotated[hint, Field(description=own)] if own else hint


def _adapter(
    parameters: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any]]:
    make_type: Any = TypedDict  # created at run time, which type checkers can't follow
    hints = {name: NotRequired[hint] if name in defaults else hint for name, hint in parameters.items()}
    arguments = make_type("Arguments", hints)
    # A misspelt optional argument must not count as missing.
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    try:
        adapter = TypeAdapter[dict[str, Any]](arguments)
        schema = _json_schema(adapter)
    except (PydanticUserError, TypeError, KeyError):
        raise SettingsError(_problem(parameters)) from None
    del schema["title"]
    for name, value in defaults.items():
        try:
            schema["properties"][name]["default"] = to_jsonable_python(value)
        except PydanticSerializationError:
            pass  # still optional; only the default can't be shown
    return adapter, schema


def _problem(parameters: Mapping[str, Any]) -> str:
    """The parameter that has no JSON schema; pydantic does not name it."""
    for name, hint in parameters.items():
        try:
            _json_schema(TypeAdapter(hint))
        except KeyError:
            return f"the type of {name} contains itself"
        except (PydanticUserError, TypeError):
            return f"the type of {name} has no JSON schema"
    return "its types have no JSON schema"


def _json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = _inlined(adapter.json_schema(schema_generator=_PlainJsonSchema), {})
    return schema


class _PlainJsonSchema(GenerateJsonSchema):
    """Omits field titles: they repeat the name and cost tokens on every turn."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Resolve every `$ref`: not all language models follow them. Raises KeyError for a recursive type."""
    match node:
        case {"$defs": inner, **rest}:
            return _inlined(rest, inner)
        case {"$ref": str(pointer), **rest}:
            name = pointer.rpartition("/")[2]
            others = {key: value for key, value in definitions.items() if key != name}
            return {**_inlined(definitions[name], others), **rest}
        case dict():
            return {key: _inlined(value, definitions) for key, value in node.items()}
        case list():
            return [_inlined(value, definitions) for value in node]
    return node


# Results


def as_content(result: object) -> str:
    """A tool's result as text for the agent: strings as they are, anything else as JSON, cut off if too long."""
    if result is None:
        return "done"
    text = result if isinstance(result, str) else ""
    # Encoded piece by piece, so that other threads can run in between.
    for piece in () if isinstance(result, str) else _Encoder(ensure_ascii=False).iterencode(result):
        text += piece
        if len(text) > MOST_RESULT_CHARACTERS:
            break
    cut = text[:MOST_RESULT_CHARACTERS] + (_CUT if len(text) > MOST_RESULT_CHARACTERS else "")
    return cut.encode(errors="replace").decode()  # half a surrogate pair can't be sent


class _Encoder(json.JSONEncoder):
    def default(self, o: object) -> object:
        if isinstance(o, Iterator):  # may be endless
            return list(itertools.islice(o, MOST_RESULT_CHARACTERS))
        return dict(o) if isinstance(o, Mapping) else to_jsonable_python(o)
