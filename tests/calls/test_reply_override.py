from gateway.calls.reply_override import ReplyOverride

OURS = "Shall I forget that? Please say yes or no."


def waiting() -> ReplyOverride:
    stand_in = ReplyOverride()
    stand_in.begin()
    return stand_in


def test_nothing_is_held_without_need():
    assert not ReplyOverride().holds


def test_own_answer_of_the_engine_is_dropped():
    stand_in = waiting()
    assert stand_in.takes("I can't do that.") is None
    stand_in.hold_sound(b"wrong")
    stand_in.says(OURS)
    assert stand_in.takes("I can't, really.") is None
    assert stand_in.holds


def test_our_answer_is_let_through():
    stand_in = waiting()
    stand_in.takes("I can't do that.")
    stand_in.hold_sound(b"wrong")
    stand_in.says(OURS)
    assert stand_in.takes("Shall I forget that?") == b""
    assert not stand_in.holds


def test_sound_before_its_text_is_ours_too():
    stand_in = waiting()
    stand_in.hold_sound(b"wrong")
    assert stand_in.takes("I can't do that.") is None
    stand_in.says(OURS)
    stand_in.hold_sound(b"ours")
    assert stand_in.takes("shall I forget that") == b"ours"


def test_caller_who_goes_on_hears_everything_again():
    stand_in = waiting()
    stand_in.end()
    assert not stand_in.holds
