"""The Redis protocol, packed and parsed, however it is cut into pieces."""

import pytest

from celery_redlock.coordinators.redis_wire import ErrorReply, Parser, ProtocolError, pack

REPLIES = [
    (b":1\r\n", 1),
    (b":-42\r\n", -42),
    (b"+OK\r\n", b"OK"),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"$0\r\n\r\n", b""),
    (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
    (b"-NOPERM no 'del'\r\n", ErrorReply("NOPERM no 'del'")),
    (b"*0\r\n", []),
    (b"*3\r\n:0\r\n$3\r\nabc\r\n:7\r\n", [0, b"abc", 7]),
    (b"*2\r\n*1\r\n:1\r\n$-1\r\n", [[1], None]),
]


@pytest.mark.parametrize(("data", "value"), REPLIES)
def test_a_reply_in_one_piece(data, value):
    """Each kind of reply becomes the plain value it stands for."""
    assert Parser().feed(data) == [value]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_replies_in_any_pieces(size):
    """A reply of which only a part has arrived is kept until the rest comes."""
    data = b"".join(one for one, _ in REPLIES)
    parser, got = Parser(), []
    for start in range(0, len(data), size):
        got += parser.feed(data[start : start + size])
    assert got == [value for _, value in REPLIES]


def test_the_usual_reply_after_a_part_of_another():
    """The short way for usual replies doesn't swallow what came before."""
    parser = Parser()
    assert parser.feed(b"$8\r\nab") == []
    assert parser.feed(b":1\r\n") == []
    assert parser.feed(b"cd\r\n:1\r\n") == [b"ab:1\r\ncd", 1]


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b":x\r\n", b"$a\r\n", b"!1\r\n"])
def test_another_protocol_is_noticed(data):
    """What is not RESP2 ends the connection instead of being guessed at."""
    with pytest.raises(ProtocolError):
        Parser().feed(data)


def test_an_error_reply_knows_its_code():
    """The first word says what kind of refusal it is."""
    assert ErrorReply("NOSCRIPT No matching script").code == "NOSCRIPT"


@pytest.mark.parametrize(
    ("words", "packed"),
    [
        (("GET", "k"), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
        (("PX", 1500), b"*2\r\n$2\r\nPX\r\n$4\r\n1500\r\n"),
        (("SET", "hø", ""), b"*3\r\n$3\r\nSET\r\n$3\r\nh\xc3\xb8\r\n$0\r\n\r\n"),
    ],
)
def test_a_command_is_counted_in_bytes(words, packed):
    """Lengths are those of the encoded words."""
    assert pack(*words) == packed
