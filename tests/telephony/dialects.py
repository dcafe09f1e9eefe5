"""Both carriers' frames, made by hand, so that one suite covers both codecs."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.telephony.codec import CarrierCodec
from gateway.telephony.telnyx import TelnyxCodec
from gateway.telephony.twilio import TwilioCodec

CALL_ID = "CA22222222222222222222222222222222"
STREAM_ID = "MZ33333333333333333333333333333333"


@dataclass(frozen=True)
class Dialect:
    """How one carrier writes its frames."""

    name: str
    make: Callable[[str], CarrierCodec]
    start: dict[str, Any]
    id_name: str

    def codec(self, token: str = "") -> CarrierCodec:
        return self.make(token)

    def streaming(self) -> CarrierCodec:
        codec = self.codec()
        codec.receive(json.dumps(self.start))
        return codec

    def frame(self, event: str, **parts: Any) -> str:
        return json.dumps({"event": event, self.id_name: STREAM_ID, **parts})

    def media(self, audio: bytes, number: int = 1, **fields: Any) -> str:
        payload = base64.b64encode(audio).decode()
        media = {"track": "inbound", "chunk": str(number), "timestamp": str(number * 20), "payload": payload, **fields}
        return self.frame("media", media=media)


TWILIO = Dialect(
    "twilio",
    TwilioCodec,
    {
        "event": "start",
        "sequenceNumber": "1",
        "streamSid": STREAM_ID,
        "start": {
            "accountSid": "AC11111111111111111111111111111111",
            "callSid": CALL_ID,
            "streamSid": STREAM_ID,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {"token": "secret", "agent": "maya"},
        },
    },
    "streamSid",
)
TELNYX = Dialect(
    "telnyx",
    TelnyxCodec,
    {
        "event": "start",
        "sequence_number": "1",
        "stream_id": STREAM_ID,
        "start": {
            "user_id": "3e6f995f-0000-4705-9741-53b116d20001",
            "call_control_id": CALL_ID,
            "call_session_id": "a1b2c3d4-0002-11f0-9c1e-02420a0d7e68",
            "from": "+12025550143",
            "to": "+12025550100",
            "client_state": None,
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
            "custom_parameters": [{"name": "agent", "value": "maya"}],
        },
    },
    "stream_id",
)
