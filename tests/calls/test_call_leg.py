from gateway.calls.call_leg import CallLegControl


class Control:
    """A carrier that does what it is asked, and remembers it."""

    asks_to_resume = True
    stop_ends_call = True

    def __init__(self) -> None:
        self.hung_up: list[str] = []
        self.transferred: list[tuple[str, str, str]] = []

    async def hang_up(self, call_id: str) -> None:
        self.hung_up.append(call_id)

    async def is_alive(self, call_id: str) -> bool:
        return call_id not in self.hung_up

    async def restart_stream(self, call_id: str, *, stream_url: str) -> None: ...

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        self.transferred.append((call_id, target, caller_id))


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def a_line(control, *, is_ours=yes, called="+12025550100"):
    return CallLegControl(control, "CA1", called, "wss://voice.example.com/twilio/media", is_ours)


async def test_own_call_is_hung_up():
    control = Control()
    await a_line(control).hang_up()
    assert control.hung_up == ["CA1"]


async def test_another_nodes_call_is_left_alone():
    control = Control()
    await a_line(control, is_ours=no).hang_up()
    assert control.hung_up == []


async def test_transfer_comes_from_the_dialled_number():
    control = Control()
    await a_line(control).transfer("+12025550199")
    await a_line(control, called="sip:front@example.com").transfer("+12025550199")
    assert control.transferred == [("CA1", "+12025550199", "+12025550100"), ("CA1", "+12025550199", "")]
