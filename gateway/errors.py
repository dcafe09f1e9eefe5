"""
Every error the gateway raises, as one tree.

GatewayError
├── SettingsError                a mistake in the environment, .env or gateway.toml
│   └── InvalidSettings          all mistakes in the values of settings
├── FileChanged                  a file was changed elsewhere since it was read
├── CarrierError
│   ├── RemoteProtocolError      the peer broke its protocol
│   ├── LocalProtocolError       we misused it: a bug
│   ├── SignatureRejected        a webhook without a valid signature
│   ├── CarrierRefused           the carrier's REST API refused a command
│   │   └── StreamInUse          the call already has a media stream
│   └── NumberNotAllowed         OUTBOUND_ALLOWED does not cover a number
├── EngineError
│   ├── EngineUnavailable        can't be reached, or was lost; worth trying again
│   └── EngineRefused            a permanent refusal: wrong key, wrong settings
├── LlmError
│   ├── LlmUnavailable           down, slow, overloaded; worth trying again
│   └── LlmRefused               answered, but not usably
├── StoreError
│   ├── DocumentNotFound
│   ├── StoreUnavailable         down, slow, overloaded; worth trying again
│   └── StoreRefused             a permanent refusal: wrong key, wrong body
├── SharedStoreUnavailable       the store that nodes share can't be reached; each goes on alone
├── TakenOver                    another node has taken over this work
├── RecordingError               a recorded call that can't be read
└── BenchFailed                  a measurement that can't be made here

Messages are lower case, without a full stop, and never quote spoken words, phone numbers or secrets.
"""

import socket
import ssl
from collections.abc import Sequence


class GatewayError(Exception):
    """Root of the tree."""

    retryable = False


class SettingsError(GatewayError):
    """A mistake of the user. The text is one line that says what to do."""


class InvalidSettings(SettingsError):
    """Settings with mistakes. The text is about the first one, `mistakes` has all."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__(mistakes[0])
        self.mistakes = mistakes


class FileChanged(GatewayError):
    """A file was changed elsewhere since it was read, so it must not be overwritten."""


class CarrierError(GatewayError):
    """A problem with a carrier."""


class RemoteProtocolError(CarrierError):
    """A peer sent something that its protocol does not allow. `peer` is its name, `problem` what it sent."""

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(f"{peer} {problem}")
        self.peer = peer
        self.problem = problem


class LocalProtocolError(CarrierError):
    """A codec was asked for something that its state does not allow."""


class SignatureRejected(CarrierError):
    """A webhook whose signature is missing, wrong or too old."""


class CarrierRefused(CarrierError):
    """The carrier's REST API refused a command. `retryable`: the same command may succeed later."""

    def __init__(self, carrier: str, command: str, status: int, code: str = "", *, retryable: bool = False) -> None:
        super().__init__(f"{carrier} refused {command}: status {status}{f', code {code}' if code else ''}")
        self.status = status
        self.code = code
        self.retryable = retryable


class StreamInUse(CarrierRefused):
    """The call already has a media stream; a carrier allows one at a time."""


class NumberNotAllowed(CarrierError):
    """A number that the gateway may not dial. The text says which setting allows it."""


class EngineError(GatewayError):
    """A problem with the voice engine."""


class EngineUnavailable(EngineError):
    """The voice engine can't be reached or the connection was lost. Retryable while the caller waits a few seconds."""

    retryable = True


class EngineRefused(EngineError):
    """The voice engine would refuse again: wrong key, settings it does not accept."""


class LlmError(GatewayError):
    """A problem with a language model. `status`: of HTTP, or 0."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class LlmUnavailable(LlmError):
    """No answer in time, an overload, a lost connection. `retry_after`: seconds, if the provider gave them."""

    retryable = True

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class LlmRefused(LlmError):
    """The provider answered, but not usably; the same request would get the same answer."""


class StoreError(GatewayError):
    """A problem with a document store."""


class DocumentNotFound(StoreError):
    """No document has this id."""

    def __init__(self, document_id: str) -> None:
        super().__init__(f"no document {document_id}")
        self.document_id = document_id


class StoreUnavailable(StoreError):
    """
    The store can't be reached, is overloaded, or sent an invalid response.

    `answer_lost`: the request may have been carried out; check before repeating it. `retry_after`: seconds, if the
    store gave them.
    """

    retryable = True

    def __init__(self, message: str, *, answer_lost: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.answer_lost = answer_lost
        self.retry_after = retry_after


class StoreRefused(StoreError):
    """The store refuses the request permanently: wrong key, scope or body."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class SharedStoreUnavailable(GatewayError):
    """The store that nodes share can't be reached. Calls go on; updates are sent later."""

    retryable = True


class TakenOver(GatewayError):
    """Another node took this one for dead and has taken over its work: stop, and undo nothing."""


class RecordingError(GatewayError):
    """A recorded call that can't be read. The text names file and line."""


class BenchFailed(GatewayError):
    """A measurement that is not possible on this machine, or has failed."""


def connection_problem(error: BaseException) -> str:
    """
    Why a connection failed, from the error of any HTTP or WebSocket library; if that is not known, the error's type.

    The libraries' own texts are not used: they may quote a header or an address with a password.
    """
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case ssl.SSLCertVerificationError():
                return f"its certificate is not valid: {cause.verify_message}"
            case ssl.SSLError():
                return "the TLS handshake failed"
            case socket.gaierror():
                return "its name can't be resolved"
            case ConnectionRefusedError():
                return "connection refused"
            case TimeoutError():
                return "no answer in time"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
