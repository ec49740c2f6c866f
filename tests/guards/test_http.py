"""``guards.http``: the header, and the middleware around an application with a database."""

import asyncio
import contextlib
import http.client
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
import sqlalchemy as sa

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.http import (
    HEADER,
    TOKEN,
    TRANSACTION,
    FencedASGI,
    FencedWSGI,
    headers,
    raise_if_stale,
)
from celery_redlock.guards.sqlalchemy import claim, metadata
from tests.guards.bank import LOCK, read, write
from tests.guards.malformed import MALFORMED

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def token(number, lock=LOCK):
    """A token of the account's lock."""
    return FencingToken(number, lock)


def in_a_transaction_of(engine):
    """What the middleware is given to open a transaction in which the token is claimed."""

    @contextlib.contextmanager
    def transaction(fencing_token):
        with engine.begin() as connection:
            claim(connection, fencing_token)
            yield connection

    return transaction


def awaited(context):
    """The same for ASGI."""

    @contextlib.asynccontextmanager
    async def transaction(fencing_token):
        with context(fencing_token) as given:
            yield given

    return transaction


class Service:
    """Adds 10 to account 7 and answers as it is told, over WSGI or ASGI."""

    def __init__(self, bank, status=200, fault=None):
        self.bank, self.status, self.fault = bank, status, fault
        self.calls = 0
        self.tokens = []

    def deposit(self, keys):
        self.calls += 1
        self.tokens.append(keys.get(TOKEN))
        connection = keys.get(TRANSACTION)
        with contextlib.ExitStack() as stack:
            if connection is None:
                connection = stack.enter_context(self.bank.engine.begin())
                if TOKEN in keys:
                    claim(connection, keys[TOKEN])
            write(connection, read(connection) + 10)
        if self.fault:
            raise self.fault

    def wsgi(self, environ, start_response):
        self.deposit(environ)
        start_response(f"{self.status} As Told", [("Content-Type", "text/plain")])
        return [b"an", b"swer"]

    async def asgi(self, scope, receive, send):
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        self.deposit(scope)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"an", "more_body": True})
        await send({"type": "http.response.body", "body": b"swer"})


def wsgi(app, header=None, method="POST"):
    """Send one request; the status and the body."""
    environ = {"REQUEST_METHOD": method, "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    if header is not None:
        environ["HTTP_FENCING_TOKEN"] = header
    started = []

    def start_response(status, fields, exc_info=None):
        started.append(status)
        return started.append

    with contextlib.closing(validator(app)(environ, start_response)) as chunks:
        body = b"".join(chunks)
    return int(started[0].split()[0]), body


async def unasked():
    """What a request would bring; nobody here wants it."""
    raise AssertionError


def asgi(app, header=None, method="POST"):
    """Send one request; the status and the body."""
    values = header if isinstance(header, list) else [] if header is None else [header]
    fields = [(b"Fencing-Token", value.encode("latin-1")) for value in values]
    scope = {"type": "http", "method": method, "path": "/", "headers": fields}
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(app(scope, unasked, send))
    return messages[0]["status"], b"".join(m.get("body", b"") for m in messages)


class Kind:
    """One of the two interfaces: how to wrap a service and how to ask it."""

    def __init__(self, name, ask, middleware):
        self.name, self.ask, self.middleware = name, ask, middleware

    def wrap(self, service, engine=None, **options):
        """The service behind the middleware; with an engine, in a transaction of it."""
        if engine is not None:
            context = in_a_transaction_of(engine)
            options["transaction"] = context if self.name == "wsgi" else awaited(context)
        return self.middleware(getattr(service, self.name), **options)


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request):
    """WSGI or ASGI."""
    if request.param == "wsgi":
        return Kind("wsgi", wsgi, FencedWSGI)
    return Kind("asgi", asgi, FencedASGI)


@pytest.fixture(params=["by the middleware", "by the application"])
def engine_given(request, bank):
    """Who opens the transaction and claims in it."""
    return bank.engine if request.param == "by the middleware" else None


def fences(bank):
    """What the fence rows hold."""
    with bank.engine.connect() as connection:
        rows = connection.execute(sa.select(metadata.tables["redlock_fence"]))
        return {row.lock_name: row.fencing_token for row in rows}


def test_a_rising_token_is_served_and_a_stale_one_gets_412(bank, kind, engine_given):
    """Also a second time, and the stale request changes nothing."""
    app = kind.wrap(Service(bank), engine_given)
    answers = [kind.ask(app, token(number).header) for number in (9, 9, 8)]
    assert [status for status, _ in answers] == [200, 200, 412]
    assert answers[0][1] == b"answer"
    assert b"stale" in answers[2][1]
    assert bank.balance() == 120
    assert fences(bank) == {LOCK: 9}


@pytest.mark.parametrize(
    "header,status",
    [
        (None, 428),
        ("", 428),
        ("nonsense", 400),
        ("account:7", 400),
        (";7", 400),
        ("account:7;", 400),
        ("account:7;-1", 400),
        ("account:7;1.5", 400),
        ("account:7;0", 400),
        (f"account:7;{2**63}", 400),
        ("account:7;" + "9" * 5000, 400),
        ("account:7;7,account:8;7", 400),
        ("konto:\xe9;7", 400),
        ("a%00b;7", 400),
    ],
)
def test_a_missing_or_malformed_token_does_not_reach_the_application(bank, kind, header, status):
    """428 for a missing one and 400 for a malformed one, with a text that says what to send."""
    service = Service(bank)
    assert kind.ask(kind.wrap(service, bank.engine), header)[0] == status
    assert service.calls == 0
    assert bank.balance() == 100


def test_two_headers_are_refused(bank):
    """The server can't know which of them counts."""
    app = FencedASGI(Service(bank).asgi)
    assert asgi(app, [token(8).header, token(9).header])[0] == 400


def test_a_token_of_another_lock_is_refused(bank, kind):
    """The service may know which lock its resource belongs to."""
    app = kind.wrap(Service(bank), bank.engine, lock=lambda request: LOCK)
    assert kind.ask(app, token(9, "account:8").header)[0] == 400
    assert kind.ask(app, token(9).header)[0] == 200
    assert fences(bank) == {LOCK: 9}


def test_a_safe_request_may_do_without(bank, kind):
    """A GET needs no token, and is not touched."""
    service = Service(bank)
    assert kind.ask(kind.wrap(service), None, "GET") == (200, b"answer")
    assert service.tokens == [None]


def test_which_requests_need_a_token_can_be_said(bank, kind):
    """By the method and the path."""
    every = kind.wrap(Service(bank), required=lambda method, path: True)
    none = kind.wrap(Service(bank), required=lambda method, path: path != "/")
    assert kind.ask(every, None, "GET")[0] == 428
    assert kind.ask(none, None, "POST")[0] == 200


@pytest.mark.parametrize("status", [400, 404, 409, 500, 503])
def test_what_an_unsuccessful_answer_did_is_rolled_back(bank, kind, status):
    """Frameworks turn exceptions into answers, so the middleware goes by the answer."""
    app = kind.wrap(Service(bank, status), bank.engine)
    assert kind.ask(app, token(9).header) == (status, b"answer")
    assert bank.balance() == 100
    assert fences(bank) == {}


def test_an_exception_rolls_back_and_is_passed_on(bank, kind):
    """The server in front decides what to answer."""
    app = kind.wrap(Service(bank, fault=ZeroDivisionError()), bank.engine)
    with pytest.raises(ZeroDivisionError):
        kind.ask(app, token(9).header)
    assert bank.balance() == 100


def test_a_refusal_deep_in_the_application_becomes_412(bank, kind):
    """Also of a token that the request didn't bring."""
    service = Service(bank, fault=StaleTokenError("other", 3, 5))
    status, body = kind.ask(kind.wrap(service, bank.engine), token(9).header)
    assert status == 412
    assert b"'other'" in body
    assert bank.balance() == 100


def test_a_refusal_after_an_answer_was_begun_becomes_412(bank):
    """An application that answers 500 and then raises is held back, as Starlette's do."""

    async def answering_first(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"oops"})
        raise StaleTokenError(LOCK, 8, 9)

    assert asgi(FencedASGI(answering_first), token(8).header)[0] == 412

    def answering_late(environ, start_response):
        write = start_response("500 Oops", [("Content-Type", "text/plain")])
        write(b"oops")
        yield b"oops"
        raise StaleTokenError(LOCK, 8, 9)

    assert wsgi(FencedWSGI(answering_late), token(8).header)[0] == 412


def test_the_answer_waits_for_the_commit(bank, kind):
    """If the commit fails, the client has not been told that all went well."""

    @contextlib.contextmanager
    def failing(fencing_token):
        yield
        raise ConnectionError

    context = failing if kind.name == "wsgi" else awaited(failing)
    app = kind.wrap(Service(bank), transaction=context)
    with pytest.raises(ConnectionError):
        kind.ask(app, token(9).header)


def test_other_connections_are_passed_on(bank):
    """A websocket is not fenced by a header of its handshake."""
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(FencedASGI(Service(bank).asgi)({"type": "websocket"}, unasked, send))
    assert messages == [{"type": "websocket.close"}]


def test_what_write_was_given_is_kept_in_order(bank):
    """WSGI's old way of answering works behind the middleware."""

    def old(environ, start_response):
        out = start_response("200 OK", [("Content-Type", "text/plain")])
        out(b"one ")
        return [b"two"]

    assert wsgi(FencedWSGI(old), token(8).header) == (200, b"one two")


def test_a_claim_apart_from_the_effect_loses_an_update(bank):
    """The control: a middleware that claims by itself lets a request through that pauses inside.

    Request 1 is checked and pauses; 2 is checked and deposits; 1 then overwrites it.
    """
    with bank.engine.begin() as apart:  # over before the effect
        claim(apart, token(1))
        seen = read(apart)
    app = FencedWSGI(Service(bank).wsgi, transaction=in_a_transaction_of(bank.engine))
    assert wsgi(app, token(2).header)[0] == 200
    with bank.engine.begin() as effect:
        write(effect, seen + 10)
    assert bank.balance() == 110  # two deposits of 10 went well


@pytest.mark.parametrize("given,lock,says", MALFORMED)
def test_a_client_can_t_send_a_missing_malformed_or_foreign_token(given, lock, says, database_url):
    """One clear error each, before anything is sent."""
    with pytest.raises(ImproperlyConfigured, match=says):
        headers(given, lock=lock)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        """Say nothing."""


@pytest.mark.parametrize("lock", [LOCK, "шлюз;7", "100%;a, b", "two words"])
def test_a_client_and_a_server_understand_each_other(bank, lock):
    """Over a real connection: the header arrives as it was sent, and 412 is a StaleTokenError."""
    app = FencedWSGI(Service(bank).wsgi, transaction=in_a_transaction_of(bank.engine))
    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def post(fencing_token):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
            connection.request("POST", "/", b"", headers(fencing_token))
            with contextlib.closing(connection), connection.getresponse() as answer:
                return answer.status

        try:
            assert post(token(9, lock)) == 200
            status = post(token(8, lock))
        finally:
            server.shutdown()
            thread.join()
    assert fences(bank) == {lock: 9}
    with pytest.raises(StaleTokenError) as caught:
        raise_if_stale(status, token(8, lock))
    assert (caught.value.lock, caught.value.fencing_token) == (lock, 8)
    raise_if_stale(200, token(8, lock))
    assert HEADER == "Fencing-Token"
