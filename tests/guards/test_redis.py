"""``guards.redis``: compare and write in one step, on real servers."""

import threading
import time

import pytest
import redis
import redis.asyncio
import valkey as valkey_py

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.redis import claim, fenced_eval, fenced_set
from localservers import Valkey
from localservers.ports import free_port
from localservers.valkey import find_debian_redis
from tests.guards.malformed import MALFORMED

LOCK = "account:7"
FENCE = f"redlock-fence:{{{LOCK}}}"
DATA = f"balance:{{{LOCK}}}"


def token(number, lock=LOCK):
    """A token of the account's lock."""
    return FencingToken(number, lock)


@pytest.fixture(params=["valkey", "redis 7.0"])
def server(request, servers):
    """A server of each kind, empty."""
    if request.param == "valkey":
        return request.getfixturevalue("valkey")
    return servers.start(lambda: Valkey(program=find_debian_redis()))


@pytest.fixture
def client(server):
    """A client that gives text."""
    with redis.Redis(port=server.port, decode_responses=True) as made:
        yield made


def test_a_token_may_write_as_often_as_it_likes(client):
    """The rightful holder's second write passes."""
    for value in ("110", "120"):
        fenced_set(client, token(5), DATA, value)
        assert client.get(DATA) == value


def test_a_lower_token_is_refused_and_nothing_is_written(client):
    """The error names the lock and both tokens."""
    fenced_set(client, token(9), DATA, "9")
    for write in (
        lambda: fenced_set(client, token(8), DATA, "8"),
        lambda: fenced_eval(client, token(8), "redis.call('SET', KEYS[1], '8')", [DATA]),
        lambda: claim(client, token(8)),
    ):
        with pytest.raises(StaleTokenError) as caught:
            write()
        assert (caught.value.lock, caught.value.fencing_token, caught.value.stored) == (LOCK, 8, 9)
    assert client.get(DATA) == "9"


def test_claim_first_stops_the_older_holder_before_the_newer_has_written(client):
    """1 reads, 2 claims and reads, 1 writes, 2 writes: without the claim, 1's deposit is lost."""

    def balance_after(claim_first):
        client.flushall()
        fenced_set(client, token(1), DATA, 100)
        one = int(client.get(DATA))
        if claim_first:
            claim(client, token(2))
        two = int(client.get(DATA))
        deposits = 0
        for number, seen in ((1, one), (2, two)):
            try:
                fenced_set(client, token(number), DATA, seen + 10)
                deposits += 1
            except StaleTokenError:
                pass
        return int(client.get(DATA)) - 10 * deposits

    assert balance_after(claim_first=False) == 90  # the control
    assert balance_after(claim_first=True) == 100


def test_neighbours_above_2_to_the_53_are_told_apart(client):
    """Tokens are compared as fixed-width text; Lua's numbers would find these equal."""
    claim(client, token(2**53 + 1))
    with pytest.raises(StaleTokenError):
        claim(client, token(2**53))
    claim(client, token(2**63 - 1))
    with pytest.raises(StaleTokenError) as caught:
        claim(client, token(2**63 - 2))
    assert caught.value.stored == 2**63 - 1
    as_numbers = "return tonumber(ARGV[1]) <= tonumber(ARGV[2]) and 1 or 0"
    assert client.eval(as_numbers, 0, 2**53 + 1, 2**53) == 1  # the control


def test_10_is_newer_than_9(client):
    """Text of unequal length would be compared by its first digit."""
    claim(client, token(9))
    claim(client, token(10))
    with pytest.raises(StaleTokenError):
        claim(client, token(9))


def test_the_fence_has_no_expiry_even_if_it_was_given_one(client):
    """A fence with a ttl forgets; the next claim takes the ttl away."""
    claim(client, token(5))
    assert client.ttl(FENCE) == -1
    client.expire(FENCE, 100)
    claim(client, token(5))
    assert client.ttl(FENCE) == -1


def test_a_script_of_one_s_own_counts_its_keys_and_arguments_from_1(client):
    """The claim's own are taken away before, and what the script returns comes back."""
    script = "redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2]); return {#KEYS, #ARGV, KEYS[1]}"
    assert fenced_eval(client, token(3), script, [DATA], ["cents", 5]) == [1, 2, DATA]
    assert client.hgetall(DATA) == {"cents": "5"}
    assert client.get(FENCE) == "0000000000000000003"


def test_what_goes_wrong_in_the_script_is_passed_on(client):
    """The script's own error is not taken for one of the fence."""
    client.hset(DATA, "x", "1")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fenced_eval(client, token(3), "return redis.call('GET', KEYS[1])", [DATA])


@pytest.mark.parametrize("given,lock,says", MALFORMED)
def test_a_missing_malformed_or_foreign_token_is_refused(client, given, lock, says):
    """One clear error each, and nothing is written."""
    with pytest.raises(ImproperlyConfigured, match=says):
        fenced_set(client, given, DATA, "555", lock=lock)
    assert client.keys() == []


def test_a_plain_int_needs_its_lock_beside_it(client):
    """A token that went through JSON is compared with the one that stayed a token."""
    claim(client, 5, lock=LOCK)
    with pytest.raises(StaleTokenError):
        claim(client, token(4), lock=LOCK)


@pytest.mark.parametrize("held", ["5", "-000000000000000005", "hello", "00000000000000000005"])
def test_a_fence_key_that_holds_something_else_is_refused(client, held):
    """A number that somebody wrote by hand has the wrong width and would compare wrongly."""
    client.set(FENCE, held)
    with pytest.raises(ImproperlyConfigured, match="something else"):
        fenced_set(client, token(7), DATA, "555")
    assert client.get(DATA) is None
    assert client.get(FENCE) == held


def test_a_fence_key_of_another_type_is_refused(client):
    """The key is somebody's hash: it is named and left alone."""
    client.hset("mine", "x", "1")
    with pytest.raises(ImproperlyConfigured, match="'mine' holds something else"):
        claim(client, token(7), fence_key="mine")
    assert client.type("mine") == "hash"


def test_a_script_with_a_shebang_is_refused(client):
    """It could not stay the first line."""
    with pytest.raises(ImproperlyConfigured, match="#!"):
        fenced_eval(client, token(7), "#!lua flags=no-writes\nreturn 1")


def test_a_pipeline_is_refused(client):
    """Its other commands would be done before anybody looks at the answer."""
    with client.pipeline() as pipeline, pytest.raises(ImproperlyConfigured, match="pipeline"):
        fenced_set(pipeline, token(7), DATA, "1")


def test_an_asynchronous_client_is_refused(valkey):
    """It would answer with a coroutine that nobody awaits."""
    with pytest.raises(ImproperlyConfigured, match="asynchronous"):
        claim(redis.asyncio.Redis(port=valkey.port), token(7))


def test_a_valkey_client_works_as_well(valkey):
    """The errors of the other client library are understood, too."""
    with valkey_py.Valkey(port=valkey.port) as client:
        fenced_set(client, token(9), DATA, "9")
        with pytest.raises(StaleTokenError):
            fenced_set(client, token(8), DATA, "8")
        assert client.get(DATA) == b"9"


def test_an_error_of_the_connection_is_passed_on():
    """Nobody can say what happened, and the client's own error says so."""
    nobody = redis.Redis(port=1, retry=None)
    with pytest.raises(redis.ConnectionError):
        claim(nobody, token(1))


def test_holders_at_once_lose_no_deposit(client, server):
    """Eight holders with rising tokens read, add and write: each is served whole or refused."""
    client.set(DATA, 0)
    deposits = []

    def holder(number):
        with redis.Redis(port=server.port) as own:
            try:
                claim(own, token(number))
                seen = int(own.get(DATA))
                fenced_set(own, token(number), DATA, seen + 10)
                deposits.append(number)
            except StaleTokenError:
                pass

    threads = [threading.Thread(target=holder, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert int(client.get(DATA)) == 10 * len(deposits)
    assert 8 in deposits


@pytest.fixture(scope="module")
def cluster(shared_servers):
    """One node that has all the slots of a cluster."""
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    server = shared_servers.start(Valkey, config=config)
    with server.client() as one:
        one.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + 30
        while one.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with redis.RedisCluster(host="127.0.0.1", port=server.port, decode_responses=True) as client:
        yield client


def test_in_a_cluster_fence_and_data_share_a_slot(cluster):
    """The default fence has the lock's name as its hash tag, so data with that tag is found."""
    fenced_set(cluster, token(9), DATA, "9")
    with pytest.raises(StaleTokenError):
        fenced_set(cluster, token(8), DATA, "8")
    assert cluster.get(DATA) == "9"
    fenced_set(cluster, token(1), "x:{tag}", "1", fence_key="fence:{tag}")
    assert cluster.get("x:{tag}") == "1"


def test_in_a_cluster_data_in_another_slot_is_refused(cluster):
    """The error says that both keys need the same hash tag, and nothing is written."""
    with pytest.raises(ImproperlyConfigured, match="hash tag"):
        fenced_set(cluster, token(9), "balance:7", "9")
    assert cluster.get("balance:7") is None
