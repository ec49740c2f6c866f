"""The fencing token: a number that knows its lock, and its way through a header."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.fencing import FencingToken, FencingTokens


def test_it_is_the_number_and_knows_its_lock():
    """It compares, counts and hashes as the number."""
    token = FencingToken(41, "account:5")
    assert token == 41
    assert token < FencingToken(42, "account:5")
    assert hash(token) == hash(41)
    assert (type(token + 1), token.lock) == (int, "account:5")


def test_it_prints_as_a_decimal():
    """In texts, formats and JSON it is the bare number; its repr has the lock."""
    token = FencingToken(41, "a")
    assert (str(token), f"{token}", f"{token:06d}", json.dumps(token)) == (
        "41",
        "41",
        "000041",
        "41",
    )
    assert repr(token) == "FencingToken(41, lock='a')"


@pytest.mark.parametrize(
    "carry", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_a_copy_knows_the_lock_too(carry):
    """Also through pickle, as a task's argument."""
    token = carry(FencingToken(2**63 - 1, "a"))
    assert (token, token.lock, type(token)) == (2**63 - 1, "a", FencingToken)


@pytest.mark.parametrize("value", [0, -1, 2**63])
def test_a_number_out_of_range_is_refused(value):
    """Resources keep it in 64 bits, with a sign."""
    with pytest.raises(ImproperlyConfigured, match=rf"from 1 to 2\*\*63 - 1, not {value}"):
        FencingToken(value, "a")


def test_a_token_without_a_lock_is_refused():
    """Nobody could tell what to compare it with."""
    with pytest.raises(ImproperlyConfigured, match="needs the name of its lock"):
        FencingToken(1, "")


@pytest.mark.parametrize(
    "lock, header",
    [
        ("account:5", "account:5;7"),
        ("a;b", "a%3Bb;7"),
        ("50%", "50%25;7"),
        ("é\n", "%C3%A9%0A;7"),
        ("a b", "a b;7"),
    ],
)
def test_its_header_is_readable_and_safe(lock, header):
    """Only what can't stand in a header is encoded."""
    assert FencingToken(7, lock).header == header


@given(st.integers(1, 2**63 - 1), st.text(min_size=1))
def test_a_header_leads_back_to_the_token(value, lock):
    """For every number and every name, in printable ASCII."""
    token = FencingToken(value, lock)
    assert token.header.isascii()
    assert token.header.isprintable()
    again = FencingToken.from_header(token.header)
    assert (again, again.lock) == (value, lock)


MALFORMED = ["", "7", ";7", "a;", "a;x", "a;-1", "a;٣", "a;1.5", "a 7"]
MALFORMED += ["a;b;7", ";;7", "a;" + "9" * 20, "a;" + "9" * 5000]  # a raw ';', too many digits


@pytest.mark.parametrize("header", MALFORMED, ids=lambda header: header[:12])
def test_a_malformed_header_is_refused(header):
    """A server must not guess which token was meant."""
    with pytest.raises(ImproperlyConfigured, match="expected '<lock>;<decimal token>'"):
        FencingToken.from_header(header)


def test_a_header_with_an_impossible_number_is_refused():
    """The range holds here as well."""
    with pytest.raises(ImproperlyConfigured, match="from 1 to"):
        FencingToken.from_header("a;0")


@pytest.mark.parametrize("header", ["a;9223372036854775808", "a;9999999999999999999"])
def test_a_header_with_nineteen_digits_has_its_range_checked(header):
    """As many digits as the highest token has, and above it."""
    with pytest.raises(ImproperlyConfigured, match="from 1 to"):
        FencingToken.from_header(header)


@pytest.fixture
def both():
    """The tokens of two locks that were taken together."""
    return FencingTokens([FencingToken(41, "b"), FencingToken(99, "a")])


def test_several_tokens_are_the_first_and_know_each(both):
    """As a number it is the token of the first lock in sorted order; each can be asked for."""
    assert (both, both.lock, str(both), isinstance(both, FencingToken)) == (99, "a", "99", True)
    assert (both["a"], both["b"]) == (99, 41)
    assert (both["b"].lock, type(both["b"])) == ("b", FencingToken)
    assert [token.lock for token in both.tokens] == ["a", "b"]
    assert repr(both) == "FencingTokens([FencingToken(99, lock='a'), FencingToken(41, lock='b')])"


def test_a_single_token_can_be_asked_for_by_its_lock():
    """So that a body need not know how many locks it has."""
    token = FencingToken(7, "a")
    assert token["a"] is token
    assert token.tokens == (token,)


@pytest.mark.parametrize("token", [FencingToken(7, "a"), FencingTokens([FencingToken(7, "a")])])
def test_the_token_of_a_lock_that_was_not_taken_is_refused(token):
    """The error names the lock that was asked for and those that there are."""
    with pytest.raises(ImproperlyConfigured, match="no fencing token of lock 'b' here.*are 'a'"):
        token["b"]


def test_a_token_is_a_number_and_no_collection(both):
    """What takes collections apart leaves it whole."""
    for token in both, both["a"]:
        with pytest.raises(TypeError):
            iter(token)


@pytest.mark.parametrize(
    "carry", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_a_copy_of_several_tokens_knows_each(both, carry):
    """Also through pickle, as a task's argument."""
    again = carry(both)
    assert type(again) is FencingTokens
    assert [(int(one), one.lock) for one in again.tokens] == [(99, "a"), (41, "b")]


def test_no_token_at_all_is_refused():
    """There would be no number to be."""
    with pytest.raises(ImproperlyConfigured, match="there is none"):
        FencingTokens([])
