"""Tokens that no guard may accept, the lock beside them, and a word of the error."""

import pytest

from celery_redlock.fencing import FencingToken

LOCK = "account:7"

MALFORMED = [
    pytest.param(None, None, "missing", id="missing"),
    pytest.param(None, LOCK, "missing", id="missing beside a lock"),
    pytest.param(5, None, "say lock=", id="plain int"),
    pytest.param(5, "", "say lock=", id="plain int of a lock without a name"),
    pytest.param(True, LOCK, "type bool", id="bool"),
    pytest.param(5.0, LOCK, "type float", id="float"),
    pytest.param("5", LOCK, "type str", id="text"),
    pytest.param(0, LOCK, "from 1 to", id="zero"),
    pytest.param(-5, LOCK, "from 1 to", id="negative"),
    pytest.param(2**63, LOCK, "from 1 to", id="64 bits"),
    pytest.param(FencingToken(5, "account:8"), LOCK, "two locks", id="of another lock"),
    pytest.param(FencingToken(5, "x" * 513), None, "512 bytes", id="of a lock with a long name"),
    pytest.param(FencingToken(5, "é" * 257), None, "512 bytes", id="of one with a wide name"),
    pytest.param(FencingToken(5, "a\0b"), None, "zero byte", id="of one with a zero byte"),
]
