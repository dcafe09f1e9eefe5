"""
Every error the gateway raises, as one tree.

GatewayError
├── SettingsError                a person's mistake in the environment, .env or gateway.toml
├── CarrierError
│   ├── RemoteProtocolError      the peer broke its protocol
│   ├── LocalProtocolError       we misused it: a bug
│   ├── SignatureRejected        a webhook that the carrier did not sign
│   └── CarrierRefused           the carrier's REST interface said no
│       └── StreamInUse          the call has its media already
├── EngineError
│   ├── EngineUnavailable        can't be reached, or was lost; worth trying again
│   └── EngineRefused            said no for good: a wrong key, wrong settings
├── LlmError
│   ├── LlmUnavailable           down, slow, overloaded; worth trying again
│   └── LlmRefused               answered, but with nothing we can use
├── StoreError
│   ├── DocumentNotFound
│   ├── StoreUnavailable         down, slow, overloaded; worth trying again
│   └── StoreRefused             said no for good: a wrong key, a wrong body
├── SharedStoreUnavailable             what nodes share can't be reached; each goes on by itself
├── TakenOver                    another node does this work now
├── RecordingError               a recorded call that can't be read
└── BenchFailed                  a measurement that can't be made here

Messages are lower case, without a full stop, and never quote what was said, a number or a secret.
"""


class GatewayError(Exception):
    """Root of the tree."""

    retryable = False


class SettingsError(GatewayError):
    """A person's mistake; the text is one line that says what to do."""


class CarrierError(GatewayError):
    """Something between us and the carrier."""


class RemoteProtocolError(CarrierError):
    """A peer sent what its protocol does not allow. `peer` is its name, `problem` what was seen."""

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(f"{peer} {problem}")
        self.peer = peer
        self.problem = problem


class LocalProtocolError(CarrierError):
    """We asked a codec for something its state does not allow."""


class SignatureRejected(CarrierError):
    """A webhook whose signature is missing, wrong or too old."""


class CarrierRefused(CarrierError):
    """The carrier's REST interface refused a command. `retryable` says whether the same one may pass later."""

    def __init__(self, carrier: str, command: str, status: int, code: str = "", *, retryable: bool = False) -> None:
        super().__init__(f"{carrier} refused {command}: status {status}{f', code {code}' if code else ''}")
        self.status = status
        self.code = code
        self.retryable = retryable


class StreamInUse(CarrierRefused):
    """The call has a media stream already; there is one at a time."""


class EngineError(GatewayError):
    """Something between us and the voice engine."""


class EngineUnavailable(EngineError):
    """The voice engine can't be reached or went away. Retryable; the caller waits a few seconds."""

    retryable = True


class EngineRefused(EngineError):
    """The voice engine will say no again: a wrong key, settings it does not take."""


class LlmError(GatewayError):
    """Something between us and a language model."""


class LlmUnavailable(LlmError):
    """No answer in time, an overload, a lost connection. `retry_after` is the provider's wish, in seconds."""

    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LlmRefused(LlmError):
    """The provider answered, but not with something usable; the same request gets the same answer."""


class StoreError(GatewayError):
    """Something between us and a document store."""


class DocumentNotFound(StoreError):
    """No document has this id."""

    def __init__(self, document_id: str) -> None:
        super().__init__(f"no document {document_id}")
        self.document_id = document_id


class StoreUnavailable(StoreError):
    """
    The store can't be reached, is overloaded or answered nonsense.

    `answer_lost` is true when the request may have been carried out all the same: ask before repeating it.
    `retry_after` is the store's wish, in seconds.
    """

    retryable = True

    def __init__(self, message: str, *, answer_lost: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.answer_lost = answer_lost
        self.retry_after = retry_after


class StoreRefused(StoreError):
    """The store said no for good: key, scope or body."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class SharedStoreUnavailable(GatewayError):
    """What several nodes share can't be reached. Calls go on; what was to be shared waits."""

    retryable = True


class TakenOver(GatewayError):
    """Another node believed this one dead and does its work now: stop, and undo nothing."""


class RecordingError(GatewayError):
    """A recorded call that can't be read; the text names file and line."""


class BenchFailed(GatewayError):
    """A measurement that can't be made on this machine, or was not held."""
