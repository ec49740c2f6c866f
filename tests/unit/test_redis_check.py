"""What the check of lock servers makes of what it sees."""

import pytest

from celery_redlock.coordinators.redis_check import _about, _Seen, _together
from celery_redlock.coordinators.redis_epoch import ADMIT, Epoch
from celery_redlock.coordinators.redis_node import Facts, Node

GOOD = Facts(
    run_id="a",
    role="master",
    version="valkey 9.1.2",
    up_since=0.0,
    appendonly="yes",
    appendfsync="always",
    eviction="noeviction",
    marker="1:set:3:0",
    release="DELIFEQ",
    extends=True,
    takes=True,
    refused="",
)


def seen(name="a", *, round_trip=0.001, offset=0.0, lacks=(), **facts):
    """A server that answered."""
    changed = {**GOOD.__dict__, "run_id": name, **facts}
    node = Node(f"redis://{name}:1/0", object, {}, 0.05)
    return _Seen(node, Facts(**changed), round_trip, offset, lacks)


def about(one, *, fenced=False):
    """The findings about one of three servers, but those that all is well."""
    found = _about(one, 3, fenced=fenced, timeout=0.05, rest=300.0)
    return [(finding.level, finding.message) for finding in found if finding.level != "ok"]


def together(*several, fenced=False, nodes=3):
    """The findings about the set, but those that all is well."""
    found = _together(several, nodes, fenced=fenced)
    return [(finding.level, finding.message) for finding in found if finding.level != "ok"]


def three(**facts):
    """A sound set, each of whose servers is a little different."""
    return [seen(name, **facts) for name in "abc"]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_sound_set_gives_no_trouble(fenced):
    """Nothing is found where there is nothing."""
    assert about(seen(), fenced=fenced) == []
    assert together(*three(), fenced=fenced) == []


@pytest.mark.parametrize(
    ("one", "said", "levels"),
    [
        (seen(version="redis 5.0.14"), "redis 5.0.14 is too old", ("warning", "error")),
        (seen(role="slave"), "is a slave", ("warning", "error")),
        (seen(lacks=["NOPERM del"]), "the user lacks a right: NOPERM del", ("warning", "error")),
        (seen(round_trip=0.02), "answers in 20.00 ms", ("warning", "warning")),
        (seen(round_trip=0.06), "answers in 60.00 ms", ("warning", "error")),
    ],
)
def test_what_is_wrong_with_one_server(one, said, levels):
    """A warning, and an error where fencing tokens depend on it."""
    for fenced, level in zip((False, True), levels, strict=True):
        assert any(found[0] == level and said in found[1] for found in about(one, fenced=fenced))


def test_one_server_more_than_once_is_always_an_error():
    """Two majorities could hold one lock."""
    several = [seen("a"), seen("b"), seen("c", run_id="a")]
    assert together(*several) == [("error", "is the same server as redis://a:1/0")]


def test_clocks_that_differ_are_told():
    """The difference between the two furthest apart, whatever ours says."""
    several = [seen("a", offset=100.0), seen("b", offset=100.2), seen("c", offset=101.7)]
    assert together(*several) == [("warning", "the wall clocks differ by 1.7 s")]


def test_fewer_than_a_majority_is_an_error():
    """One of three is not enough for anything."""
    assert ("error", "2 of 3 must answer, and 1 did") in together(seen())


@pytest.mark.parametrize(
    ("markers", "said"),
    [
        (["1:set:3:0", "1:set:3:0", None], "doesn't vote"),
        (["1:set:3:0", "1:set:3:0", "2:other:3:9"], "doesn't vote"),
        (["1:set:3:0", None, None], "no majority is in one epoch"),
        (["s1:set:3:0"] * 3, "no majority is in one epoch"),
        (["1:set:5:0"] * 3, "no majority is in one epoch"),
        (["0:set:3:0"] * 3, "no majority is in one epoch"),
        (["rubbish"] * 3, "no majority is in one epoch"),
        ([None, None], "all must answer at the first use of the set, and 1 didn't"),
    ],
)
def test_epochs_that_dont_fit(markers, said):
    """The finding has the command that mends it, where one does."""
    several = [seen(name, marker=one) for name, one in zip("abc", markers, strict=False)]
    findings = list(_together(several, 3, fenced=True))
    found = next(finding for finding in findings if said in finding.message)
    assert ADMIT in found.cure or found.cure == "start them"
    assert together(*several) == []


@pytest.mark.parametrize("marker", ["1:set:3:0", "s12:set:5:1796071544015087", "0:a:3:0"])
def test_a_marker_is_read_as_it_was_written(marker):
    """What an epoch says, it says again."""
    assert str(Epoch.parse(marker)) == marker


@pytest.mark.parametrize("marker", ["", "1:set:3", "x:set:3:0", "1:set:3:-1", "1:a:b:3:0"])
def test_what_is_no_marker(marker):
    """Anything else is none of ours."""
    assert Epoch.parse(marker) is None
