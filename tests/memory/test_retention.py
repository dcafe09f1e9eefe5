from datetime import UTC, datetime, timedelta

from gateway.memory.retention import Retention

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


def test_agent_has_its_own_word():
    retention = Retention(90, {"maya": 7, "ben": 0})
    assert retention.oldest("maya", NOW) == NOW - timedelta(days=7)
    assert retention.oldest("ben", NOW) is None
    assert retention.oldest("eve", NOW) == NOW - timedelta(days=90)


def test_each_agent_is_expired_once():
    limits = Retention(90, {"maya": 7, "ben": 0}).limits(NOW)
    meant = {agent: [moment for moment, of in limits if of(agent)] for agent in ("maya", "ben", "eve")}
    assert meant == {"maya": [NOW - timedelta(days=7)], "ben": [], "eve": [NOW - timedelta(days=90)]}


def test_nothing_is_deleted_by_default():
    assert Retention().limits(NOW) == []
