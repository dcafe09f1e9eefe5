"""Media sockets: maps paths to codecs. Independent of the WebSocket library."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

from gateway.calls.manager import CallManager
from gateway.telephony.codec import CarrierCodec
from gateway.telephony.media_stream import MediaStream
from gateway.telephony.telnyx import TelnyxCodec
from gateway.telephony.twilio import SoftphoneCodec, TwilioCodec
from gateway.web import softphone, telnyx, twilio

CODECS: Final[Mapping[str, Callable[[str], CarrierCodec]]] = {
    twilio.MEDIA_PATH: TwilioCodec,
    telnyx.MEDIA_PATH: TelnyxCodec,
    softphone.MEDIA_PATH: SoftphoneCodec,
}


class MediaEndpoint:
    """Creates a MediaStream for each media socket; 503 if its carrier is not configured."""

    def __init__(self, manager: CallManager, carriers: frozenset[str]) -> None:
        self._manager = manager
        self._carriers = carriers | {SoftphoneCodec.name}

    def __call__(self, target: str, headers: Mapping[str, str]) -> MediaStream | int:
        """The handler of a socket requested at `target` (path and query), or an HTTP status."""
        parts = urlsplit(target)
        make_codec = CODECS.get(parts.path)
        if make_codec is None:
            return 404
        codec = make_codec(parse_qs(parts.query).get("token", [""])[0])
        if codec.name not in self._carriers:
            return 503
        stream = MediaStream(codec, self._manager.admit, gone=self._manager.gone)
        self._manager.expect(stream)
        return stream
