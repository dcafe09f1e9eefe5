"""How long facts are told: for every agent the same, unless one has its own word on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Retention:
    """In days; 0 for ever."""

    days: int = 0
    by_agent: Mapping[str, int] = field(default_factory=dict)

    def oldest(self, agent: str, now: datetime) -> datetime | None:
        """What was not said since is not told any more; None where everything is."""
        return _before(now, self.by_agent.get(agent, self.days))

    def limits(self, now: datetime) -> list[tuple[datetime, Callable[[str], bool]]]:
        """What is to be deleted: all before a moment, of these agents."""
        own = {agent: _before(now, days) for agent, days in self.by_agent.items()}
        limits = [(moment, agent.__eq__) for agent, moment in own.items() if moment is not None]
        general = _before(now, self.days)
        return [*limits, *([(general, lambda agent: agent not in own)] if general is not None else [])]


def _before(now: datetime, days: int) -> datetime | None:
    return now - timedelta(days=days) if days else None
