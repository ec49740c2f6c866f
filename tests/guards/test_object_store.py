"""``guards.object_store``: conditional writes against a server that speaks S3."""

import logging
import threading

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

from celery_redlock.exceptions import ImproperlyConfigured, RedlockError, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.object_store import FencedObject, S3Store, content_of
from tests.guards.bank import run, schedules
from tests.guards.malformed import MALFORMED

LOCK = "account:7"
NAME = "accounts/7"


def token(number, lock=LOCK):
    """A token of the account's lock."""
    return FencingToken(number, lock)


@pytest.fixture(scope="module")
def client():
    """A client of an S3 server that looks at its conditions, one request at a time."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="us-east-1",
        aws_access_key_id="nobody",
        aws_secret_access_key="nothing",
    )
    made.create_bucket(Bucket="bucket")
    yield made
    made.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(client):
    """An empty bucket."""
    for kept in client.list_objects_v2(Bucket="bucket").get("Contents", ()):
        client.delete_object(Bucket="bucket", Key=kept["Key"])
    return S3Store(client, "bucket")


def test_a_token_may_write_as_often_as_it_likes(store):
    """Also from another process that has the same grant."""
    fenced = FencedObject(store, NAME, token(5))
    assert fenced.claim() is None
    for content in (b"one", b"", b"three"):
        fenced.write(content)
        assert content_of(store, NAME) == content
    assert FencedObject(store, NAME, token(5)).claim() == b"three"


def test_a_lower_token_is_refused_and_nothing_is_written(store):
    """Neither a claim nor a write gets through; the error names both tokens."""
    FencedObject(store, NAME, token(9)).write(b"nine")
    for refused in (
        FencedObject(store, NAME, token(8)).claim,
        lambda: FencedObject(store, NAME, token(8)).write(b"eight"),
    ):
        with pytest.raises(StaleTokenError) as caught:
            refused()
        assert (caught.value.lock, caught.value.fencing_token, caught.value.stored) == (LOCK, 8, 9)
    assert content_of(store, NAME) == b"nine"


def test_a_claim_alone_stops_an_older_holder_that_has_claimed(store):
    """The newer holder has written nothing yet, and the older one can't write any more."""
    older, newer = (FencedObject(store, NAME, token(n)) for n in (1, 2))
    older.write(b"100")
    assert newer.claim() == b"100"
    with pytest.raises(StaleTokenError):
        older.write(b"110")
    newer.write(b"110")
    assert content_of(store, NAME) == b"110"


def test_10_is_newer_than_9_and_2_to_the_53_isn_t_its_neighbour(store):
    """Tokens are compared as whole numbers, whatever their length."""
    for number in (9, 10, 2**53, 2**53 + 1, 2**63 - 1):
        FencedObject(store, NAME, token(number)).claim()
        with pytest.raises(StaleTokenError):
            FencedObject(store, NAME, token(number - 1)).claim()


class _Depositing:
    """One holder: look at the balance, then write 10 more."""

    def __init__(self, fenced):
        self.fenced = fenced

    def program(self):
        """Its steps."""
        return [self.look, self.save]

    def look(self):
        self.seen = int(self.fenced.claim())

    def save(self):
        self.fenced.write(b"%d" % (self.seen + 10))


class _TokenInMetadata(_Depositing):
    """The mistake: the token is kept beside the bytes, where the tag doesn't see it."""

    def __init__(self, client, number):
        self.client, self.number = client, number

    def _look(self):
        answer = self.client.get_object(Bucket="bucket", Key=NAME)
        stored = int(answer["Metadata"]["token"])
        if stored > self.number:
            raise StaleTokenError(LOCK, self.number, stored)
        return answer["Body"].read(), answer["ETag"]

    def _put(self, data, tag):
        self.client.put_object(
            Bucket="bucket",
            Key=NAME,
            Body=data,
            IfMatch=tag,
            Metadata={"token": str(self.number)},
        )

    def look(self):
        data, tag = self._look()
        self._put(data, tag)  # the claim
        _, self.tag = self._look()
        self.seen = int(data)

    def save(self):
        try:
            self._put(b"%d" % (self.seen + 10), self.tag)
        except ClientError as exc:
            raise StaleTokenError(LOCK, self.number) from exc


def test_no_deposit_is_lost_in_any_order(store, client):
    """Two holders, each reading and writing, in every order."""
    for schedule in schedules(2, 2):
        client.delete_object(Bucket="bucket", Key=NAME)
        FencedObject(store, NAME, token(1)).write(b"100")
        holders = [_Depositing(FencedObject(store, NAME, token(n))) for n in (1, 2)]
        deposits = sum(run(schedule, *[holder.program() for holder in holders]))
        assert int(content_of(store, NAME)) == 100 + 10 * deposits


def test_with_the_token_in_the_metadata_an_older_holder_can_still_write(store, client):
    """The control: the newer holder's claim leaves the tag as it was, so it stops nobody."""
    client.put_object(Bucket="bucket", Key=NAME, Body=b"100", Metadata={"token": "1"})
    programs = [_TokenInMetadata(client, n).program() for n in (1, 2)]
    assert run([0, 1, 0], *programs) == [True, True]
    client.delete_object(Bucket="bucket", Key=NAME)
    FencedObject(store, NAME, token(1)).write(b"100")
    programs = [_Depositing(FencedObject(store, NAME, token(n))).program() for n in (1, 2)]
    assert run([0, 1, 0], *programs) == [False, True]


def test_two_holders_that_find_no_object_don_t_both_make_it(store):
    """The first put is made with If-None-Match."""
    assert store.put(NAME, b"a", None) is not None
    assert store.put(NAME, b"b", None) is None
    assert store.get(NAME).data == b"a"


def test_a_put_that_must_match_doesn_t_make_an_object(store):
    """What was deleted in between is not there to be matched."""
    assert store.put(NAME, b"a", '"0123"') is None
    assert store.get(NAME) is None


def test_many_holders_at_once_lose_no_deposit(store):
    """Eight threads with rising tokens: each is served whole or refused."""
    FencedObject(store, NAME, token(1)).write(b"100")
    served, failed = [], []

    def holder(number):
        try:
            fenced = FencedObject(store, NAME, token(number))
            fenced.write(b"%d" % (int(fenced.claim()) + 10))
            served.append(number)
        except StaleTokenError:
            pass
        except Exception as exc:
            failed.append(exc)

    threads = [threading.Thread(target=holder, args=(n,)) for n in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert 9 in served
    assert content_of(store, NAME) == b"%d" % (100 + 10 * len(served))


class _Around:
    """A store with something that happens around its puts."""

    def __init__(self, store, before=None, after=None):
        self.store, self.before, self.after = store, before, after

    def get(self, name):
        return self.store.get(name)

    def put(self, name, data, tag):
        before, self.before = self.before, None
        if before:
            before()
        after, self.after = self.after, None
        written = self.store.put(name, data, tag)
        return after(name, data, tag) if after else written


def test_a_write_that_the_client_had_sent_twice_is_no_refusal(store):
    """The answer to the first was lost, and the second finds what the first wrote."""
    FencedObject(store, NAME, token(5)).claim()
    twice = _Around(store, after=store.put)
    fenced = FencedObject(twice, NAME, token(5))
    fenced.write(b"new")
    assert content_of(store, NAME) == b"new"
    fenced.write(b"newer")
    assert content_of(store, NAME) == b"newer"


def test_a_claim_that_the_client_had_sent_twice_is_no_refusal(store):
    """It finds its own token there."""
    assert FencedObject(_Around(store, after=store.put), NAME, token(5)).claim() is None
    assert content_of(store, NAME) is None


def test_a_claim_that_is_overtaken_looks_again(store):
    """An older holder's write, or a newer one's claim, between the look and the put."""
    FencedObject(store, NAME, token(1)).write(b"old")
    older = _Around(store, before=lambda: FencedObject(store, NAME, token(1)).write(b"newest"))
    assert FencedObject(older, NAME, token(5)).claim() == b"newest"
    newer = _Around(store, before=lambda: FencedObject(store, NAME, token(9)).claim())
    with pytest.raises(StaleTokenError):
        FencedObject(newer, NAME, token(6)).claim()


def test_a_store_that_never_lets_a_put_through_ends_the_tries(store):
    """The error says so; it is no endless loop."""

    class Never:
        def get(self, name):
            return store.get(name)

        def put(self, name, data, tag):
            return None

    with pytest.raises(RedlockError, match="10 times"):
        FencedObject(Never(), NAME, token(5)).claim()
    FencedObject(store, NAME, token(5)).claim()
    with pytest.raises(RedlockError, match="10 tries"):
        FencedObject(Never(), NAME, token(5)).write(b"x")


def test_another_writer_with_the_same_token_is_told(store):
    """Its content is not overwritten unseen."""
    one, two = (FencedObject(store, NAME, token(5)) for _ in range(2))
    one.claim()
    two.write(b"two")
    with pytest.raises(RedlockError, match="another writer"):
        one.write(b"one")
    assert one.claim() == b"two"
    one.write(b"three")
    assert content_of(store, NAME) == b"three"


def test_a_deleted_object_is_told(store, client):
    """Its fence is gone with it, so a write can't go on as if nothing had happened."""
    fenced = FencedObject(store, NAME, token(5))
    fenced.claim()
    client.delete_object(Bucket="bucket", Key=NAME)
    with pytest.raises(RedlockError, match="deleted"):
        fenced.write(b"x")
    assert store.get(NAME) is None


@pytest.mark.parametrize("data", [b"", b"text", b"redlock-fence 5 account:7 content\n"])
def test_an_object_that_isn_t_fenced_is_refused_or_taken_over(store, client, data):
    """Somebody writes past the fence; whether that was before it began, only a person knows."""
    client.put_object(Bucket="bucket", Key=NAME, Body=data)
    for refused in (
        FencedObject(store, NAME, token(5)).claim,
        lambda: content_of(store, NAME),
    ):
        with pytest.raises(ImproperlyConfigured, match="without a fence"):
            refused()
    assert FencedObject(store, NAME, token(5), adopt=True).claim() == data
    assert content_of(store, NAME) == data


def test_an_object_of_another_lock_is_refused(store):
    """Tokens of two locks can't be compared."""
    FencedObject(store, NAME, token(5, "account:8; é")).claim()
    with pytest.raises(ImproperlyConfigured, match="belongs to lock 'account:8; é'"):
        FencedObject(store, NAME, token(9)).claim()


@pytest.mark.parametrize("given,lock,says", MALFORMED)
def test_a_missing_malformed_or_foreign_token_is_refused(store, given, lock, says):
    """One clear error each, before anything is sent."""
    with pytest.raises(ImproperlyConfigured, match=says):
        FencedObject(store, NAME, given, lock=lock)


def test_a_reader_finds_nothing_where_nothing_is(store):
    """Neither before the first claim nor after it."""
    assert content_of(store, NAME) is None
    FencedObject(store, NAME, token(5)).claim()
    assert content_of(store, NAME) is None


def test_its_repr_shows_the_state(store):
    """For logs and debuggers."""
    fenced = FencedObject(store, NAME, token(5))
    assert repr(fenced) == "<FencedObject 'accounts/7' token=5 not claimed>"
    fenced.claim()
    assert repr(fenced) == "<FencedObject 'accounts/7' token=5 claimed>"


class _Client:
    """A client whose puts are changed on their way."""

    def __init__(self, client, put):
        self._client, self._put = client, put
        self.exceptions = client.exceptions

    def __getattr__(self, name):
        return getattr(self._client, name)

    def put_object(self, **arguments):
        return self._put(self._client, **arguments)


@pytest.mark.parametrize("ignored", ["IfNoneMatch", "IfMatch"])
def test_a_server_that_ignores_conditions_is_found_out(store, client, ignored):
    """It answers 200 where it must not; one that keeps them passes the check."""
    store.check()

    def put(real, **arguments):
        arguments.pop(ignored, None)
        return real.put_object(**arguments)

    with pytest.raises(ImproperlyConfigured, match="If-None-Match" if "None" in ignored else "If-"):
        S3Store(_Client(client, put), "bucket").check()


def test_a_conflict_that_may_be_tried_again_is(store, client):
    """S3 answers 409 where another conditional write is under way."""
    conflicts = [409]

    def put(real, **arguments):
        if conflicts:
            answer = {
                "Error": {"Code": "ConditionalRequestConflict"},
                "ResponseMetadata": {"HTTPStatusCode": conflicts.pop()},
            }
            raise ClientError(answer, "PutObject")
        return real.put_object(**arguments)

    FencedObject(store, NAME, token(5)).claim()
    FencedObject(S3Store(_Client(client, put), "bucket"), NAME, token(5)).write(b"x")
    assert content_of(store, NAME) == b"x"
    assert conflicts == []


def test_other_errors_of_the_server_are_passed_on(client):
    """A bucket that isn't there is no refused condition."""
    store = S3Store(client, "nowhere")
    with pytest.raises(ClientError, match="NoSuchBucket"):
        store.put(NAME, b"x", None)
    with pytest.raises(ClientError, match="NoSuchBucket"):
        FencedObject(store, NAME, token(5)).claim()
