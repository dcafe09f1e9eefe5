from gateway.calls.reply_override import ReplyOverride

OURS = "Shall I forget that? Please say yes or no."


def waiting() -> ReplyOverride:
    reply_override = ReplyOverride()
    reply_override.begin()
    return reply_override


def test_nothing_is_held_without_need():
    assert not ReplyOverride().holds


def test_own_answer_of_the_engine_is_dropped():
    reply_override = waiting()
    assert reply_override.takes("I can't do that.") is None
    reply_override.hold_sound(b"wrong")
    reply_override.says(OURS)
    assert reply_override.takes("I can't, really.") is None
    assert reply_override.holds


def test_our_answer_is_let_through():
    reply_override = waiting()
    reply_override.takes("I can't do that.")
    reply_override.hold_sound(b"wrong")
    reply_override.says(OURS)
    assert reply_override.takes("Shall I forget that?") == b""
    assert not reply_override.holds


def test_sound_before_its_text_is_ours_too():
    reply_override = waiting()
    reply_override.hold_sound(b"wrong")
    assert reply_override.takes("I can't do that.") is None
    reply_override.says(OURS)
    reply_override.hold_sound(b"ours")
    assert reply_override.takes("shall I forget that") == b"ours"


def test_caller_who_goes_on_hears_everything_again():
    reply_override = waiting()
    reply_override.end()
    assert not reply_override.holds
