"""The gateway's own softphone, in a browser or a terminal. It uses Twilio's media protocol without an account."""

from typing import ClassVar, Final

from gateway.telephony.twilio import TwilioCodec

ACCOUNT: Final = "softphone"
"""The account id in its `start`."""


class SoftphoneCodec(TwilioCodec):
    name: ClassVar[str] = "softphone"
