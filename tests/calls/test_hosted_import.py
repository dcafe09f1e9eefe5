"""Imports that are interrupted or repeated leave each call once. tests/cli/test_import_calls.py has the command."""

from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.calls.hosted_import import ImportFinalizer, NoJobStore
from gateway.errors import LlmRefused, LlmUnavailable, StoreUnavailable
from gateway.finalization.job import FinalizationJob
from gateway.finalization.steps import FinalizationSteps
from gateway.session import Speaker, TrustLevel, Turn, VoiceSession
from tests.calls.aftermath import START, Aftermath, MoodyModel, a_session, aftermath_in
from tests.fakes.remem import FakeRemem

STEPS = "write_archive write_document send_remote learn_facts note_topics list_call".split()


class Killed(BaseException):
    """The process ends here."""


async def nothing(session_id: str) -> None: ...


@pytest.fixture
async def aftermath(tmp_path: Path) -> AsyncIterator[Aftermath]:
    async with aftermath_in(tmp_path) as made:
        yield made


def finalizer(aftermath: Aftermath, **options: Any) -> ImportFinalizer:
    steps = replace(aftermath.steps, jobs=NoJobStore())
    return ImportFinalizer(steps, aftermath.jobs, **{"clear_away": nothing, "sleep": aftermath.pauses} | options)


def killed_in(steps: FinalizationSteps, name: str, *, is_done: bool) -> FinalizationSteps:
    """Steps of a process that dies in this one, before or after it is done."""

    class Mortal(FinalizationSteps): ...

    async def step(self: FinalizationSteps, job: FinalizationJob) -> None:
        if is_done:
            await getattr(FinalizationSteps, name)(self, job)
        raise Killed

    setattr(Mortal, name, step)
    return Mortal(**{one.name: getattr(steps, one.name) for one in fields(steps)})


async def listed(aftermath: Aftermath, session: VoiceSession) -> list[str]:
    return [call.session_id for call in await aftermath.steps.memory.calls.by_ids([session.id])]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_killed_import_is_repeated_without_a_second_document(
    aftermath: Aftermath, step: str, is_done: bool
) -> None:
    async with FakeRemem() as remem:
        aftermath.sends_to(remem)
        whole, session = aftermath.steps, a_session(turns=[Turn(Speaker.CALLER, "My dog is called Rex.", START)])
        aftermath.steps = killed_in(whole, step, is_done=is_done)
        with pytest.raises(Killed):
            await finalizer(aftermath).finalize(replace(session))
        aftermath.steps = whole
        again = finalizer(aftermath)
        is_complete = step == "list_call" and is_done
        assert await again.has(session.id) is is_complete
        if not is_complete:
            assert await again.finalize(session)
        assert await again.has(session.id)
        assert len(await aftermath.documents()) == 1 and len(remem.documents) == 1
        assert await listed(aftermath, session) == [session.id]
        assert len(await aftermath.steps.memory.facts.known(session.agent, session.caller, 10)) == 1
        assert len(aftermath.archives()) == 1 and await aftermath.unfinished_jobs() == []


async def test_id_that_another_begins_with_is_another_call(aftermath: Aftermath) -> None:
    await finalizer(aftermath).finalize(replace(a_session(), id="voice-session:conv_10"))
    assert not await finalizer(aftermath).has("voice-session:conv_1")
    assert not await aftermath.finalizer().has("voice-session:conv_1")
    await finalizer(aftermath).finalize(replace(a_session(), id="voice-session:conv_1"))
    assert await finalizer(aftermath).has("voice-session:conv_1")
    assert await aftermath.finalizer().has("voice-session:conv_1")


async def test_job_of_the_gateway_is_left_to_it(aftermath: Aftermath) -> None:
    session = a_session()
    await aftermath.jobs.add(FinalizationJob(session))
    assert await finalizer(aftermath).has(session.id)


async def test_busy_language_model_is_asked_again(aftermath: Aftermath) -> None:
    model = MoodyModel(failure=LlmUnavailable("busy", retry_after=40.0))
    aftermath.asks(model)
    aftermath.pauses.events.append(model.recovers)
    assert await finalizer(aftermath).finalize(a_session())
    assert aftermath.pauses.lengths == [40.0]
    [call] = await aftermath.steps.memory.calls.newest()
    assert call.summary_by == "test/model"


@pytest.mark.parametrize("failure", [LlmRefused("wrong key"), LlmUnavailable("away")])
async def test_rules_summarize_without_a_language_model(aftermath: Aftermath, failure: Exception) -> None:
    aftermath.asks(MoodyModel(failure=failure))  # type: ignore[arg-type]
    assert await finalizer(aftermath).finalize(a_session())
    [call] = await aftermath.steps.memory.calls.newest()
    assert call.summary_by == "extractive"


async def test_erased_caller_stays_erased(aftermath: Aftermath) -> None:
    """Also if the erasure happens during the import."""
    cleared = []
    answers = iter([False, False, True])

    async def is_erased(session: VoiceSession) -> bool:
        return next(answers, True)

    async def clear_away(session_id: str) -> None:
        cleared.append(session_id)

    aftermath.steps = replace(aftermath.steps, is_erased=is_erased)
    session = a_session()
    assert not await finalizer(aftermath, clear_away=clear_away).finalize(session)
    assert cleared == [session.id] and await aftermath.documents() == []
    assert not await finalizer(aftermath, clear_away=clear_away).finalize(session)
    assert await listed(aftermath, session) == []


async def test_imported_call_has_the_name_of_an_earlier_one(aftermath: Aftermath) -> None:
    def said(*texts: str) -> list[Turn]:
        return [Turn(Speaker.CALLER, text, START) for text in texts]

    work = finalizer(aftermath)
    await work.finalize(a_session(turns=said("Hello, my name is Ana Lopez. I ride a red bike.")))
    later, distrusted = (
        a_session(turns=said("Is my bike ready?")),
        a_session(turns=said("Is it?"), trust=TrustLevel.NONE),
    )
    for session in (later, distrusted):
        await work.finalize(session)
    assert (later.known_name, distrusted.known_name) == ("Ana Lopez", "")
    [document] = [one for one in await aftermath.documents() if later.id in one.content]
    assert "**Caller:** Ana Lopez" in document.content


async def test_full_disk_is_a_store_error(aftermath: Aftermath) -> None:
    aftermath.archive_dir.write_text("a file where the folder should be")
    with pytest.raises(StoreUnavailable, match="a transcript could not be written"):
        await finalizer(aftermath).finalize(a_session())
