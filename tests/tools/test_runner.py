import asyncio
import json
import textwrap
import threading
from typing import Annotated

import pytest

from gateway.engines.interface import FunctionCall
from gateway.session import VoiceSession
from gateway.tools.conversation import Conversation
from gateway.tools.module import load_toolbox
from gateway.tools.runner import MOST_BETWEEN_TURNS, MOST_RESULT_CHARACTERS, Builtin, FunctionRunner, LoopBreaker
from gateway.tools.schema import FunctionSchema
from gateway.tools.threads import ToolThreads
from tests.stage import until

SECRET = "Ana's card is 4111"


class Line:
    """One call with a user's file, and what its agent and its caller get of it."""

    def __init__(self, tasks, tool_module, *, workers=None, builtins=(), memory=None):
        self.answers = []
        self.done = []
        self.conv = Conversation(VoiceSession("maya", "+12025550143", "twilio"), self, memory=memory)
        self.names = next(iter(tool_module.tools.values())).function.__globals__ if tool_module.tools else {}
        self.runner = FunctionRunner(
            tasks,
            self.conv,
            tool_module=tool_module,
            workers=workers or ToolThreads(),
            answer=self._answer,
            builtins=builtins,
        )
        self._asked = 0

    def call(self, name, call_id=None, **arguments):
        self._asked += 1
        return FunctionCall(call_id or f"fc_{self._asked}", name, json.dumps(arguments))

    async def ask(self, name, **arguments):
        """Call it as the agent does; the answer."""
        call = self.call(name, **arguments)
        self.runner.start(call)
        return await self.answer_to(call)

    async def answer_to(self, call):
        await until(lambda: call in dict(self.answers))
        return dict(self.answers)[call]

    def _answer(self, call, content):
        self.answers.append((call, content))

    # The host

    def say(self, text):
        self.done.append(text)

    def hang_up(self):
        self.done.append("hang up")

    def transfer(self, target):
        self.done.append(target)

    def turns(self):
        return []


@pytest.fixture
async def lines(tmp_path):
    """Makes calls of agents with this file; all end with the test."""
    made = []

    async with asyncio.TaskGroup() as tasks:

        def make(source="", **options):
            path = tmp_path / "bistro.py"
            path.write_text("import asyncio, threading, time\n" + textwrap.dedent(source))
            made.append(Line(tasks, load_toolbox(path), **options))
            return made[-1]

        yield make
        for line in made:
            line.runner.close()
            if gate := line.names.get("gate"):
                gate.set()


def error(content):
    return json.loads(content)["error"]


# Results


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("'booked'", "booked"),
        ("None", "done"),
        ("{'day': 'Friday', 'guests': [1, 2]}", '{"day": "Friday", "guests": [1, 2]}'),
        ("__import__('datetime').date(2026, 2, 6)", '"2026-02-06"'),
        ("conv.memory", '{"order": {"grams": 200}}'),
        ("'caf\\u00e9 \\ud800'", "café ?"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_result_reaches_the_agent(lines, kind, result, content):
    line = lines(f"{kind} book(conv): return {result}", memory={"order": {"grams": 200}})
    assert await line.ask("book") == content


@pytest.mark.parametrize(
    "result",
    ["'x' * 5_000_000", "['x'] * 5_000_000", "{'a': ['x' * 5_000_000]}", "__import__('itertools').repeat('x')"],
)
async def test_megabytes_are_cut_off(lines, result):
    content = await lines(f"def dump(): return {result}").ask("dump")
    assert content.endswith("x … (cut off here)") or content.endswith('"x", … (cut off here)')
    assert len(content) < MOST_RESULT_CHARACTERS + 20


async def test_arguments_and_effects_pass_both_ways(lines):
    line = lines("""
        async def book(conv, day: str, guests: int = 2):
            conv.state["booking_day"] = day
            conv.say("One moment.")
            await asyncio.sleep(0)
            return {"guests": guests}
        """)
    assert await line.ask("book", day="Friday") == '{"guests": 2}'
    assert line.conv.state.fields() == {"booking_day": "Friday"}
    assert line.done == ["One moment."]


# What goes wrong


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("def", "ValueError"),
        ("def", "SystemExit"),
        ("def", "StopIteration"),
        ("def", "KeyboardInterrupt"),
        ("async def", "ValueError"),
        ("async def", "SystemExit"),
        ("async def", "CancelledError"),
    ],
)
async def test_error_is_told_in_words_and_logged_by_kind(lines, caplog, kind, raised):
    line = lines(f"from asyncio import CancelledError\n{kind} book():\n    raise {raised}({SECRET!r})")
    assert await line.ask("book") == '{"error":"book failed; tell the caller that it did not work"}'
    (record,) = caplog.records
    assert (record.message, record.function, record.error, record.line) == (
        "function failed",
        "book",
        raised,
        4,
    )
    assert SECRET not in caplog.text


@pytest.mark.parametrize("result", ["object()", "{(1, 2): 3}", "[conv]"])
async def test_result_that_is_no_json_is_a_failure(lines, result):
    line = lines(f"def odd(conv): return {result}")
    assert error(await line.ask("odd")) == "odd failed; tell the caller that it did not work"


async def test_wrong_arguments_are_explained(lines):
    line = lines("def book(day: str, guests: int = 2): ...")
    wanted = "wrong arguments for book: day: Field required; guests: Input should be a valid integer, "
    assert error(await line.ask("book", guests="two")).startswith(wanted)
    broken = FunctionCall("fc_9", "book", '{"day": ')
    line.runner.start(broken)
    assert error(await line.answer_to(broken)).startswith("wrong arguments for book: Invalid JSON")


async def test_unknown_function_is_answered(lines, caplog):
    assert error(await lines().ask(SECRET)) == "there is no function of this name"
    assert caplog.messages == ["agent called an unknown function"]
    assert SECRET not in caplog.text


BLOCKING = """
    gate = threading.Event()

    async def block_the_loop():
        gate.wait()
        return "at last"

    def block():
        gate.wait()
        return "at last"

    async def quick():
        return "quick"
    """


@pytest.mark.parametrize("name", ["block", "block_the_loop"])
async def test_blocking_function_holds_up_nothing(lines, name):
    """Neither its own call's other functions nor another call's; and the gateway's loop runs this test meanwhile."""
    workers = ToolThreads()
    line, other = lines(BLOCKING, workers=workers), lines(BLOCKING, workers=workers)
    blocked = line.call(name)
    line.runner.start(blocked)
    assert await line.ask("quick") == "quick"
    assert await other.ask("quick") == "quick"
    assert blocked not in dict(line.answers)
    line.names["gate"].set()
    assert await line.answer_to(blocked) == "at last"


@pytest.mark.parametrize("body", ["gate.wait()", "while not gate.is_set(): pass"])
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_function_that_never_ends_is_left(lines, caplog, kind, body):
    """What it does after it was left reaches nobody."""
    line = lines(f"""
        gate, over = threading.Event(), threading.Event()

        {kind} book(conv):
            try:
                {body}
                conv.hang_up()
            finally:
                over.set()

        book.timeout = 0.05
        """)
    assert error(await line.ask("book")) == "book took too long; it may or may not have worked; tell the caller"
    assert caplog.messages == ["function took too long"]
    line.names["gate"].set()
    await until(line.names["over"].is_set)
    await asyncio.sleep(0)
    assert line.done == []


async def test_function_that_hangs_everywhere_is_refused_at_once(lines):
    line = lines(
        "gate = threading.Event()\ndef hang(call: int): gate.wait()\nhang.timeout = 0.05\ndef quick(): return 'quick'",
        workers=ToolThreads(most_per_function=2),
    )
    for number in range(2):
        assert "took too long" in await line.ask("hang", call=number)
    assert error(await line.ask("hang", call=2)) == "hang does not work at the moment; tell the caller"
    assert await line.ask("quick") == "quick"


async def test_call_runs_four_at_once(lines):
    line = lines("""
        gate, running = threading.Event(), []

        def wait(number: int):
            running.append(number)
            gate.wait()
            return str(number)
        """)
    calls = [line.call("wait", number=number) for number in range(6)]
    for call in calls:
        line.runner.start(call)
    await until(lambda: len(line.names["running"]) == 4)
    line.names["gate"].set()
    assert [await line.answer_to(call) for call in calls] == ["0", "1", "2", "3", "4", "5"]


# Cancelled and repeated


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_cancelled_function_is_not_answered(lines, kind):
    waiting = "await asyncio.sleep(60)" if kind == "async def" else "gate.wait()"
    line = lines(f"""
        gate, started, over = threading.Event(), threading.Event(), threading.Event()

        {kind} look_up(conv):
            try:
                started.set()
                {waiting}
                conv.say("found")
            finally:
                over.set()

        def quick(): return "quick"
        """)
    unwanted = line.call("look_up")
    line.runner.start(unwanted)
    await until(line.names["started"].is_set)
    line.runner.cancel([unwanted.id, "fc_unknown"])
    line.names["gate"].set()
    await until(line.names["over"].is_set)
    assert await line.ask("quick") == "quick"
    assert [content for _, content in line.answers] == ["quick"]
    assert line.done == []


async def test_repeated_id_runs_once_and_is_answered_alike(lines):
    line = lines("""
        gate, runs = threading.Event(), []

        def book(day: str):
            runs.append(day)
            gate.wait()
            return f"booking {len(runs)}"
        """)
    call = line.call("book", day="Friday")
    line.runner.start(call)
    line.runner.start(call)
    line.names["gate"].set()
    assert await line.answer_to(call) == "booking 1"
    line.runner.start(call)
    assert line.answers == [(call, "booking 1")] * 2
    assert line.names["runs"] == ["Friday"]


async def test_id_of_another_connection_is_another_call(lines):
    """An engine may count from the start again when it is connected to again."""
    line = lines("def book(day: str): return day")
    assert await line.ask("book", call_id="fc_1", day="Friday") == "Friday"
    assert await line.ask("book", call_id="fc_1", day="Sunday") == "Sunday"


async def test_ended_call_answers_nothing(lines):
    line = lines(BLOCKING)
    line.runner.start(line.call("block"))
    line.runner.close()
    line.runner.start(line.call("quick"))
    line.names["gate"].set()
    await until(lambda: "function block" not in {thread.name for thread in threading.enumerate()})
    await asyncio.sleep(0)
    assert line.answers == []


# Agents that go round in circles


async def test_same_call_again_and_again_is_stopped(lines):
    line = lines("def look_up(day: str): return 'nothing'")
    found = [await line.ask("look_up", day="Friday") for _ in range(4)]
    assert found[:3] == ["nothing"] * 3
    assert error(found[3]).endswith("stop, and ask the caller")
    assert await line.ask("look_up", day="Sunday") == "nothing"
    line.runner.caller_spoke()
    assert await line.ask("look_up", day="Sunday") == "nothing"


def looked_up(day, *, spelling='{"day": "%s", "n": 1}'):
    return FunctionCall("fc", "look_up", spelling % day)


def test_spelling_of_arguments_makes_no_difference():
    breaker = LoopBreaker()
    for _ in range(3):
        assert not breaker.refuses(looked_up("Friday"))
    assert breaker.refuses(looked_up("Friday", spelling='{"n":1,"day":"%s"}'))


def test_many_calls_without_a_word_are_stopped():
    breaker = LoopBreaker()
    assert not any(breaker.refuses(looked_up(number)) for number in range(MOST_BETWEEN_TURNS))
    assert breaker.refuses(looked_up("more")).endswith("ask the caller what to do")
    breaker.reset()
    assert not breaker.refuses(looked_up("more"))


def test_wrong_guesses_do_not_count():
    """A caller who pauses often makes the engine ask, and take it back, again and again."""
    breaker = LoopBreaker()
    for _ in range(MOST_BETWEEN_TURNS + 1):
        assert not breaker.refuses(looked_up("Friday"))
        breaker.taken_back(looked_up("Friday"))


# The gateway's own


TRANSFER = FunctionSchema.of("transfer_call", "Hand over.", {"to": Annotated[str, "the number"]})


async def test_builtin_runs_on_the_loop_with_its_call(lines):
    home = asyncio.get_running_loop()

    async def transfer(call, arguments):
        assert asyncio.get_running_loop() is home
        return {"id": call.id, **arguments}

    line = lines("def book(): ...", builtins=[Builtin(TRANSFER, transfer)])
    assert [function.name for function in line.runner.functions] == ["book", "transfer_call"]
    assert await line.ask("transfer_call", to="desk") == '{"id": "fc_1", "to": "desk"}'
    assert error(await line.ask("transfer_call")) == "wrong arguments for transfer_call: to: Field required"


async def test_failing_builtin_is_answered_too(lines, caplog):
    async def fail(call, arguments):
        raise RuntimeError(SECRET)

    line = lines(builtins=[Builtin(TRANSFER, fail)])
    assert error(await line.ask("transfer_call", to="desk")).startswith("transfer_call failed")
    assert [(record.message, record.error) for record in caplog.records] == [("function failed", "RuntimeError")]
    assert SECRET not in caplog.text


async def test_slow_builtin_is_left(lines):
    async def wait(call, arguments):
        await asyncio.Event().wait()

    line = lines(builtins=[Builtin(TRANSFER, wait, timeout=0.01)])
    assert "took too long" in await line.ask("transfer_call", to="desk")


# Start and end of the call


async def test_hooks_run_around_the_call(lines):
    line = lines(
        """
        def start_function(conv):
            if cheese := conv.memory.get("cheese_type"):
                conv.say(f"You previously picked {cheese}.")

        async def end_function(conv):
            conv.state["calls"] = 2
        """,
        memory={"cheese_type": "gouda"},
    )
    await line.runner.run_start()
    assert line.done == ["You previously picked gouda."]
    line.runner.close()
    await line.runner.run_end()
    assert line.conv.state.fields() == {"calls": 2}
    assert line.answers == []


async def test_file_without_hooks_has_nothing_to_run(lines):
    line = lines("def book(): ...")
    await line.runner.run_start()
    await line.runner.run_end()


async def test_bad_hooks_do_not_stop_the_call(lines, caplog):
    line = lines(f"""
        gate, over = threading.Event(), threading.Event()

        def start_function(conv):
            gate.wait()
            conv.say("too late")
            over.set()

        def end_function(conv):
            raise ValueError({SECRET!r})

        def book(): ...
        """)
    await line.runner.run_start(timeout=0.01)
    line.names["gate"].set()
    await until(line.names["over"].is_set)
    await line.runner.run_end()
    assert line.done == []
    assert [(record.message, record.function) for record in caplog.records] == [
        ("function took too long", "start_function"),
        ("function failed", "end_function"),
    ]
    assert SECRET not in caplog.text
