import pytest

from gateway.memory.access import AccessChange, MemoryAccess
from gateway.memory.trust import TrustLevel
from tests.fakes.call_parts import FakeMemory, FakeMemorySource

ANA, BERND = "+12025550143", "state:customer:7"


@pytest.fixture
def source() -> FakeMemorySource:
    return FakeMemorySource(**{ANA: FakeMemory("Ana"), BERND: FakeMemory("Bernd")})


@pytest.fixture
def access(source: FakeMemorySource) -> MemoryAccess:
    access = MemoryAccess(TrustLevel.NAME, caller=ANA)
    access.open(source)
    return access


@pytest.fixture
def changes(access: MemoryAccess) -> list[AccessChange]:
    seen: list[AccessChange] = []
    access.subscribe(seen.append)
    return seen


@pytest.mark.parametrize("level", TrustLevel)
def test_level_includes_those_below(level):
    access = MemoryAccess(level)
    assert [access.allows(other) for other in TrustLevel] == [other <= level for other in TrustLevel]


def test_locked_memory_allows_nothing():
    access = MemoryAccess()
    access.locked = True
    assert [level for level in TrustLevel if access.allows(level)] == [TrustLevel.NONE]


def test_memory_of_the_caller_is_loaded(access, source):
    assert access.memory is source.memories[ANA]


def test_gateway_without_memory_has_none():
    access = MemoryAccess(caller=ANA)
    assert access.memory is None
    assert not access.can_erase


def test_level_rises_and_never_falls(access, changes):
    access.raise_level(TrustLevel.EVERYTHING)
    access.raise_level(TrustLevel.NAME)
    assert access.level is TrustLevel.EVERYTHING
    assert changes == [AccessChange.LEVEL_RAISED] * 2


def test_other_caller_has_another_memory(access, source, changes):
    access.change_caller(BERND)
    assert (access.caller, access.memory) == (BERND, source.memories[BERND])
    assert source.memories[ANA].cancelled
    assert changes == [AccessChange.CALLER_CHANGED]


def test_name_of_the_speaker_changes_the_content(access, changes):
    access.name_speaker("Bernd", locked=True)
    assert (access.person, access.locked) == ("Bernd", True)
    assert changes == [AccessChange.CONTENT_CHANGED]


def test_known_name_changes_nothing(access, changes):
    access.name_speaker("Ana", locked=True)
    assert (access.person, access.locked, changes) == ("Ana", False, [])


def test_revoked_memory_is_locked(access, changes):
    access.revoke()
    assert access.locked
    assert changes == [AccessChange.REVOKED]


def test_observers_see_the_change_in_effect_and_in_order(access):
    seen = []
    access.subscribe(lambda change: seen.append(("first", access.locked)))
    access.subscribe(lambda change: seen.append(("second", access.locked)))
    access.revoke()
    assert seen == [("first", True), ("second", True)]


def test_closed_access_has_no_observers_and_keeps_its_level(access, source, changes):
    access.raise_level(TrustLevel.EVERYTHING)
    access.close()
    access.revoke()
    assert changes == [AccessChange.LEVEL_RAISED]
    assert source.memories[ANA].cancelled
    assert access.level is TrustLevel.EVERYTHING


async def test_memory_of_the_caller_is_erased(access, source):
    await access.erase()
    assert source.erased == [ANA]
