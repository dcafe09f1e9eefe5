from gateway.audio import SILENCE_FRAME
from gateway.bench.frame_stamps import Delays, FrameCount, FrameLedger, call_of, stamped


def ledger(*, frames=0):
    made = FrameLedger(7, Delays())
    return made, [made.send(1000 * number) for number in range(frames)]


def test_frame_names_its_call():
    frame = stamped(299, 12, 34)
    assert (len(frame), call_of(frame)) == (160, 299)


def test_other_sound_names_no_call():
    assert [call_of(SILENCE_FRAME), call_of(b""), call_of(stamped(1, 2, 3)[:-1])] == [None, None, None]


def test_frames_in_order_are_faultless():
    books, frames = ledger(frames=3)
    for frame in frames:
        books.receive(frame, 5000)
    assert FrameCount.of([books]) == FrameCount(sent=3, lost=0, reordered=0, changed=0)
    assert FrameCount.of([books]).faultless


def test_missing_frame_is_lost():
    books, frames = ledger(frames=3)
    books.receive(frames[0], 5000)
    books.receive(frames[2], 5000)
    assert FrameCount.of([books]) == FrameCount(sent=3, lost=1, reordered=0, changed=0)


def test_repeated_frame_is_seen():
    books, frames = ledger(frames=1)
    books.receive(frames[0], 5000)
    books.receive(frames[0], 5000)
    assert FrameCount.of([books]) == FrameCount(sent=1, lost=0, reordered=1, changed=0)


def test_swapped_frames_are_no_success():
    books, frames = ledger(frames=2)
    books.receive(frames[1], 5000)
    books.receive(frames[0], 5000)
    assert FrameCount.of([books]) == FrameCount(sent=2, lost=1, reordered=1, changed=0)


def test_changed_sound_is_seen():
    books, frames = ledger(frames=1)
    books.receive(frames[0][:-1] + bytes([frames[0][-1] ^ 1]), 5000)
    assert FrameCount.of([books]) == FrameCount(sent=1, lost=1, reordered=0, changed=1)


def test_another_calls_frame_is_seen():
    books, _ = ledger(frames=1)
    books.receive(stamped(8, 0, 0), 5000)
    assert FrameCount.of([books]) == FrameCount(sent=1, lost=1, reordered=0, changed=1)


def test_delays_count_inside_window_only():
    delays = Delays()
    delays.open_window(100, 200)
    for sent in (99, 100, 199, 200):
        delays.add(sent, 250)
    assert list(delays.values_ns) == [150, 51]
