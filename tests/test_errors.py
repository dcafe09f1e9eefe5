import inspect
import re
import socket
import ssl

import pytest

from gateway import errors
from gateway.errors import (
    CarrierRefused,
    DocumentNotFound,
    EngineUnavailable,
    GatewayError,
    LlmUnavailable,
    RemoteProtocolError,
    SharedStoreUnavailable,
    StoreRefused,
    StoreUnavailable,
    connection_problem,
)

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == "gateway.errors"]


def drawn_tree():
    """The tree of the module's docstring, as pairs of a name and its parent's."""
    parents, pairs = ["Exception"], set()
    for line in errors.__doc__.splitlines():
        if match := re.match(r"([│ ]*(?:[├└]── )?)([A-Z][A-Za-z]+)(?:  |$)", line):
            depth = len(match[1]) // 4
            pairs.add((match[2], parents[depth]))
            parents[depth + 1 :] = [match[2]]
    return pairs


def test_the_drawing_is_the_tree():
    assert drawn_tree() == {(kind.__name__, kind.__bases__[0].__name__) for kind in CLASSES}


def test_only_passing_faults_are_retryable():
    retryable = {kind for kind in CLASSES if kind.retryable}
    assert retryable == {EngineUnavailable, LlmUnavailable, StoreUnavailable, SharedStoreUnavailable}


def test_protocol_error_keeps_its_parts():
    error = RemoteProtocolError("twilio", "sent 'media' while connecting")
    assert str(error) == "twilio sent 'media' while connecting"
    assert (error.peer, error.problem) == ("twilio", "sent 'media' while connecting")


@pytest.mark.parametrize(
    "code, message",
    [("", "twilio refused hang-up: status 500"), ("20500", "twilio refused hang-up: status 500, code 20500")],
)
def test_refused_command_names_status_and_code(code, message):
    error = CarrierRefused("twilio", "hang-up", 500, code, retryable=True)
    assert str(error) == message
    assert (error.status, error.code, error.retryable) == (500, code, True)


def test_refusal_is_final_unless_said():
    assert CarrierRefused("telnyx", "answer", 422).retryable is False
    assert CarrierRefused.retryable is False


def test_missing_document_names_its_id():
    error = DocumentNotFound("7f0c")
    assert (str(error), error.document_id, error.retryable) == ("no document 7f0c", "7f0c", False)


def test_lost_answer_is_marked():
    assert StoreUnavailable("remem was lost").answer_lost is False
    error = StoreUnavailable("remem was lost", answer_lost=True, retry_after=2.0)
    assert (error.answer_lost, error.retry_after) == (True, 2.0)


def test_wishes_and_statuses_are_kept():
    assert LlmUnavailable("overloaded", retry_after=3.0).retry_after == 3.0
    assert LlmUnavailable("overloaded").retry_after is None
    assert StoreRefused("remem answered 401", status=401).status == 401


def test_one_handler_catches_all():
    assert all(issubclass(kind, GatewayError) for kind in CLASSES)


def raised_from(cause):
    """As the libraries raise it: their own error, from one of asyncio or of the system."""
    try:
        try:
            raise cause
        except Exception as error:
            raise OSError("All connection attempts failed, with a-password") from error
    except OSError as error:
        return error


@pytest.mark.parametrize(
    ("cause", "problem"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "its name can't be resolved"),
        (TimeoutError(), "no answer in time"),
        (ssl.SSLError(1, "wrong version number"), "the TLS handshake failed"),
        (ConnectionResetError(), "OSError"),
    ],
)
def test_connection_problem_names_the_cause(cause, problem):
    assert connection_problem(raised_from(cause)) == problem


def test_certificate_problem_is_quoted():
    cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
    cause.verify_message = "self-signed certificate"
    assert connection_problem(raised_from(cause)) == "its certificate is not valid: self-signed certificate"
