import asyncio
import sys
import textwrap

import pytest

from gateway.engines.interface import AgentFunction
from gateway.errors import SettingsError
from gateway.tools.module import ReloadingToolModule, load_tool_module
from tests.stage import until, until_it


@pytest.fixture
def write(tmp_path):
    """Write the user's file; its path."""

    def write(source):
        path = tmp_path / "bistro.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


BISTRO = '''
    from __future__ import annotations

    from os.path import join
    from typing import TYPE_CHECKING, Annotated

    from gateway.tools.module import speculative, timeout

    if TYPE_CHECKING:
        from gateway.tools.conversation import Conversation

    LIMIT = 8

    class Table: ...

    def start_function(conv): ...

    def end_function(conv: Conversation): ...

    async def book(conv: Conversation, day: Annotated[str, "day of the week"], guests: int = 2) -> str:
        """
        Book a table.

        Ask for the day first.

        Args:
            day: not this
            guests: how many come
        """
        return f"{conv} {day} {guests}"

    @speculative
    @timeout(3)
    def opening_hours(day: str) -> str:
        """:param day: of the week"""
        return _hours(day)

    def _hours(day): ...
'''


def definitions(module):
    return [tool.schema.definition for tool in module.tools.values()]


def test_public_functions_become_tools(write):
    box = load_tool_module(write(BISTRO))
    assert list(box.tools) == ["book", "opening_hours"]
    assert (box.start.name, box.end.name) == ("start_function", "end_function")


def test_definitions_come_from_the_file(write):
    book, hours = definitions(load_tool_module(write(BISTRO)))
    assert book == AgentFunction(
        "book",
        "Book a table.\n\nAsk for the day first.",
        {
            "type": "object",
            "properties": {
                "day": {"type": "string", "description": "day of the week"},
                "guests": {"type": "integer", "description": "how many come", "default": 2},
            },
            "required": ["day"],
            "additionalProperties": False,
        },
    )
    assert (hours.description, hours.speculative) == ("opening hours", True)
    assert hours.parameters["properties"] == {"day": {"type": "string", "description": "of the week"}}


def test_own_time_replaces_ten_seconds(write):
    tools = load_tool_module(write(BISTRO)).tools
    assert (tools["book"].timeout, tools["opening_hours"].timeout) == (10.0, 3.0)


async def test_conversation_is_passed_where_it_is_wanted(write):
    tools = load_tool_module(write(BISTRO)).tools
    assert await tools["book"].call("<conv>", '{"day": "Friday"}') == "<conv> Friday 2"
    assert tools["opening_hours"].call("<conv>", '{"day": "Friday"}') is None


@pytest.mark.parametrize("signature", ["conv", "call: Conversation", "day: str, conv: Conversation", "*, conv"])
def test_conversation_is_known_by_name_or_hint(write, signature):
    box = load_tool_module(write(f"from gateway import Conversation\ndef greet({signature}): ..."))
    assert box.tools["greet"].conversation in ("conv", "call")


EXAMPLES = """
def start_function(conv: Conversation):
    cheese = conv.memory.get("cheese_type")
    if cheese:
        conv.say(f"You previously picked {cheese}.")


def book(conv: Conversation):
  conv.state["cheese_type"] = "brie"
"""


def test_conversation_needs_no_import(write):
    module = load_tool_module(write(EXAMPLES))
    assert (module.start.conversation, list(module.tools), module.tools["book"].conversation) == (
        "conv",
        ["book"],
        "conv",
    )


def test_conv_of_another_type_is_an_argument(write):
    (greet,) = definitions(load_tool_module(write("def greet(conv: str): ...")))
    assert greet.parameters["required"] == ["conv"]


def test_every_load_is_a_fresh_module(write):
    path = write("served = []\ndef serve(dish: str):\n    served.append(dish)\n    return len(served)")
    first, second = load_tool_module(path), load_tool_module(path)
    assert [box.tools["serve"].call(None, '{"dish": "soup"}') for box in (first, first, second)] == [1, 2, 1]
    assert "bistro" not in sys.modules


def test_classes_of_the_file_may_be_hints(write):
    path = write("""
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Guest:
            name: str

        def seat(guests: list[Guest]) -> str:
            return guests[0].name
        """)
    assert load_tool_module(path).tools["seat"].call(None, '{"guests": [{"name": "Ana"}]}') == "Ana"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1\ndef book(:", "bistro.py, line 2: invalid syntax"),
        ("x = 1\nimport no_such_module", "bistro.py, line 2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\nraise ValueError('key sk-123')", "bistro.py, line 2: ValueError"),
        ("import sys\nsys.exit(3)", "bistro.py, line 2: SystemExit"),
        ("def book(day): ...", "bistro.py, line 1, book: day has no type hint; write it like day: str"),
        ("def book(*days: str): ...", "bistro.py, line 1, book: an agent can't pass *days: str; "),
        ("def book(**more: str): ...", "bistro.py, line 1, book: an agent can't pass **more: str; "),
        ("def book(day: str, /): ...", "bistro.py, line 1, book: an agent can't pass day: str; "),
        ("def book(day: 'Day'): ...", "bistro.py, line 1, book: a type hint names Day, which is not defined"),
        ("def book(day: 'a b'): ...", "bistro.py, line 1, book: a type hint can't be understood"),
        (
            "from typing import Annotated\nfrom pydantic import Field\n"
            "def book(day: Annotated[str, Field(pattern='[')]): ...",
            "bistro.py, line 3, book: its type hints can't be understood (SchemaError)",
        ),
        ("\ndef book(day: type): ...", "bistro.py, line 2, book: the type of day has no JSON schema"),
        ("def book():\n    yield 1", "bistro.py, line 1, book: it yields; return one value instead"),
        ("def book(): ...\nbook.timeout = '5'", "bistro.py, line 1, book: its timeout is not a number of seconds"),
        ("def bücher(): ...", "bistro.py, line 1, bücher: a function's name is up to 64 of the letters a to z, "),
        ("def start_function(conv, day: str): ...", "bistro.py, line 1, start_function: takes the conversation and "),
        ("def end_call(): ...", "bistro.py, line 1, end_call: the gateway has a function of this name"),
    ],
)
def test_mistake_is_one_line(write, source, problem):
    with pytest.raises(SettingsError) as raised:
        load_tool_module(write(source), reserved=frozenset({"end_call"}))
    assert str(raised.value).startswith(problem)
    assert "\n" not in str(raised.value)
    assert "sk-123" not in str(raised.value)


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(SettingsError) as raised:
        load_tool_module(tmp_path / "bistro.py")
    assert str(raised.value) == "bistro.py can't be read: No such file or directory"


# The shelf


async def names(shelf):
    return list((await shelf.current()).tools)


LONG = 60.0

SLOW = """
    import time
    from pathlib import Path

    Path({begun!r}).touch()
    while not Path({go_on!r}).exists():
        time.sleep(0.001)

    def order(): ...
"""


async def test_unchanged_file_is_loaded_once(write):
    shelf = ReloadingToolModule(write("def book(): ..."))
    assert await shelf.current() is await shelf.current()


async def test_changed_file_serves_new_calls(write):
    """The next one, and those that arrive with it."""
    shelf = ReloadingToolModule(write("def book(): ..."), patience=LONG)
    before = await shelf.current()
    write("def order(): ...")
    assert await asyncio.gather(names(shelf), names(shelf)) == [["order"], ["order"]]
    assert list(before.tools) == ["book"]


async def test_file_that_changes_while_it_loads_is_loaded_again(write, tmp_path):
    shelf = ReloadingToolModule(write("def book(): ..."), patience=LONG)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    write(SLOW.format(begun=str(begun), go_on=str(go_on)))
    call = asyncio.create_task(names(shelf))
    await until(begun.exists)
    write("def refund(): ...")
    go_on.touch()
    assert await call == ["refund"]


async def test_broken_version_is_logged_once_and_skipped(write, caplog):
    path = write("def book(): ...")
    shelf = ReloadingToolModule(path, patience=LONG)
    path.unlink()
    write("def order(:")
    assert [await names(shelf) for _ in range(3)] == [["book"]] * 3
    assert [(record.message, record.reason) for record in caplog.records] == [
        ("functions can't be loaded, keeping the previous version", "bistro.py, line 1: invalid syntax")
    ]
    write("def order(): ...")
    assert await names(shelf) == ["order"]


async def test_new_version_may_not_take_a_reserved_name(write):
    path = write("def book(): ...")
    with pytest.raises(SettingsError):
        ReloadingToolModule(path, reserved=frozenset({"book"}))


async def test_slow_file_holds_up_no_call(write, tmp_path):
    """The call gets the functions there were; those after it the new ones."""
    shelf = ReloadingToolModule(write("def book(): ..."), patience=0.01)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    write(SLOW.format(begun=str(begun), go_on=str(go_on)))
    assert [await names(shelf) for _ in range(2)] == [["book"], ["book"]]
    go_on.touch()

    async def loaded():
        return await names(shelf) == ["order"]

    await until_it(loaded)
