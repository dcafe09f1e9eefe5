import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.speech.protocol import MessageKind, SpeechMessage, SpeechReader

MESSAGES = st.lists(
    st.builds(
        SpeechMessage,
        st.sampled_from(MessageKind),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=300),
    ),
    max_size=5,
)


@given(MESSAGES, st.integers(1, 50))
def test_messages_may_be_split_anywhere(messages, size):
    stream = b"".join(message.encoded() for message in messages)
    reader = SpeechReader()
    read = [message for at in range(0, len(stream), size) for message in reader.feed(stream[at : at + size])]
    assert read == messages


def test_other_data_is_refused():
    with pytest.raises(ValueError, match="too long"):
        SpeechReader().feed(b"Traceback (most recent call last):")
