"""A carrier's REST API for unit tests: records the commands, answers what the test sets."""

from gateway.errors import CarrierRefused


class FakeCallControl:
    """A CallControl. Like Twilio it requests a lost stream itself, unless `asks_to_resume` is false."""

    def __init__(self, *, asks_to_resume: bool = True, alive: bool | None = True) -> None:
        self.asks_to_resume = asks_to_resume
        self.stop_ends_call = asks_to_resume
        self.alive = alive
        self.refusal: CarrierRefused | None = None
        self.commands: list[tuple[str, ...]] = []

    async def hang_up(self, call_id: str) -> None:
        self.commands.append(("hang up", call_id))

    async def is_alive(self, call_id: str) -> bool | None:
        return self.alive

    async def restart_stream(self, call_id: str, *, stream_url: str, replaces: bool) -> None:
        self.commands.append(("restart", call_id, "replaces" if replaces else "adds"))
        if self.refusal is not None:
            raise self.refusal

    async def dial(self, to: str, *, caller_id: str, order_id: str, media_url: str, **_: object) -> str:
        self.commands.append(("dial", to))
        return "CA-dialled"

    async def transfer(self, call_id: str, target: str, *, caller_id: str, media_url: str) -> None:
        self.commands.append(("transfer", call_id, target, caller_id))
