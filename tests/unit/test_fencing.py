"""The fencing token: a number that knows its lock, and its way through a header."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.fencing import FencingToken


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


@pytest.mark.parametrize("header", ["", "7", ";7", "a;", "a;x", "a;-1", "a;٣", "a;1.5", "a 7"])
def test_a_malformed_header_is_refused(header):
    """A server must not guess which token was meant."""
    with pytest.raises(ImproperlyConfigured, match="expected '<lock>;<decimal token>'"):
        FencingToken.from_header(header)


def test_a_header_with_an_impossible_number_is_refused():
    """The range holds here as well."""
    with pytest.raises(ImproperlyConfigured, match="from 1 to"):
        FencingToken.from_header("a;0")
