"""The gateway's own phone, in a browser or a terminal: it speaks Twilio's media dialect, and is nobody's customer."""

from typing import ClassVar, Final

from gateway.telephony.twilio import TwilioCodec

ACCOUNT: Final = "softphone"
"""What stands in place of an account in its `start`."""


class SoftphoneCodec(TwilioCodec):
    name: ClassVar[str] = "softphone"
