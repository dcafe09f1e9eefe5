"""Media sockets: maps paths to codecs. Independent of the WebSocket library."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from gateway.calls.manager import CallManager
from gateway.errors import SignatureRejected
from gateway.logs import BurstLogger
from gateway.settings import Secret
from gateway.telephony import media_stream
from gateway.telephony.codec import CarrierCodec
from gateway.telephony.media_stream import MediaStream
from gateway.telephony.signatures import check_twilio
from gateway.telephony.telnyx import TelnyxCodec
from gateway.telephony.twilio import SoftphoneCodec, TwilioCodec
from gateway.web import softphone, telnyx, twilio
from gateway.web.request import PublicUrl
from gateway.web.softphone import MediaPass, TokenCodec
from gateway.websocket.interface import UpgradeRequest

CODECS: Final[Mapping[str, Callable[[str], CarrierCodec]]] = {
    twilio.MEDIA_PATH: TwilioCodec,
    telnyx.MEDIA_PATH: TelnyxCodec,
    softphone.MEDIA_PATH: SoftphoneCodec,
}


class MediaEndpoint:
    """
    Creates a MediaStream for each media socket.

    503 if its carrier is not configured, 403 for a wrong Twilio signature, and 404 for a phone that no call waits for.
    """

    def __init__(
        self,
        manager: CallManager,
        carriers: frozenset[str],
        public: PublicUrl,
        twilio_auth_token: Secret | None,
        tokens: TokenCodec,
    ) -> None:
        self._manager = manager
        self._carriers = carriers | {SoftphoneCodec.name}
        self._public = public
        self._twilio_auth_token = twilio_auth_token
        self._tokens = tokens
        self._stranger_log = BurstLogger(logging.getLogger(media_stream.__name__))

    def __call__(self, upgrade: UpgradeRequest) -> MediaStream | int:
        path, _, parameters = upgrade.target.partition("?")  # not urlsplit, which raises for addresses like //[
        make_codec = CODECS.get(path)
        if make_codec is None:
            return 404
        query = parse_qs(parameters)
        token = query.get("token", [""])[0]
        codec = make_codec(token)
        if codec.name not in self._carriers:
            return 503
        has_pass = self._tokens.read(MediaPass, query.get("pass", [""])[0], time.time()) is not None
        is_verified = has_pass or bool(token) and self._manager.awaits_media(codec.name, token)
        if codec.name == SoftphoneCodec.name and not has_pass and not self._manager.awaits_media(codec.name):
            return 404
        if codec.name == TwilioCodec.name and "x-twilio-signature" in upgrade.headers:
            is_verified = self._is_signed(upgrade.headers)
            if not is_verified:
                self._stranger_log.warning("media socket refused", {"carrier": codec.name, "reason": "wrong signature"})
                return 403
        stream = MediaStream(codec, self._manager.admit, gone=self._manager.gone, stranger_log=self._stranger_log)
        self._manager.expect(stream, upgrade.peer, is_verified=is_verified)
        return stream

    def _is_signed(self, headers: Mapping[str, str]) -> bool:
        """
        Check Twilio's signature of the upgrade.

        Twilio signs the address of `<Stream>`, which has the scheme wss, and has been seen to add a slash. It signs
        with or without the standard port; its validator tries both, but takes 80 for the port of wss.
        """
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": "http", "scheme": "http", "path": twilio.MEDIA_PATH, "query_string": b"", "headers": raw}
        _, _, address = self._public.origin(Request(scope)).partition("://")
        token = self._twilio_auth_token.reveal() if self._twilio_auth_token is not None else ""
        for scheme, port in (("wss", ""), ("wss", ":443"), ("https", ""), ("ws", ""), ("http", "")):
            for end in ("", "/"):
                try:
                    check_twilio(token, f"{scheme}://{address}{port}{twilio.MEDIA_PATH}{end}", [], headers)
                except SignatureRejected:
                    continue
                return True
        return False
