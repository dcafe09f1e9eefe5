"""Answering machine detection for calls that the gateway places: what it is asked for, and what carriers report."""

import enum


class MachineDetection(enum.Enum):
    OFF = enum.auto()
    MACHINE = enum.auto()
    """Report a machine as soon as it is recognized."""
    GREETING_END = enum.auto()
    """Report also when its greeting is over and it records."""

    @classmethod
    def for_message(cls, message: str | None) -> "MachineDetection":
        """What `OutboundCall.voicemail` needs."""
        if message is None:
            return cls.OFF
        return cls.GREETING_END if message else cls.MACHINE


class AnsweredBy(enum.StrEnum):
    """What answered a call. Carriers that are not sure report nothing of use: then the agent talks on."""

    PERSON = "person"
    MACHINE = "machine"
    """Its greeting may still be playing."""
    GREETING_OVER = "greeting over"
    """It records now."""
    NO_MAILBOX = "no mailbox"
    """A fax, or a mailbox that takes no message."""
