"""Lock names: equal for equal calls, different for different ones, wherever they are made.

The four serializers are kombu's own.  The last section shows that each property catches a key
maker that is made the obvious, wrong way.
"""

import dataclasses
import inspect
import json
import math
import pickle
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kombu.serialization import dumps, enable_insecure_serializers, loads, registry

from celery_redlock.canonical import canonical
from celery_redlock.keys import KeyMaker

BEGINNING = datetime.min  # noqa: DTZ901 - naive on purpose
NEW_YEAR = datetime(2024, 1, 1)  # noqa: DTZ001 - naive on purpose
SERIALIZERS = ["json", "pickle", "yaml", "msgpack"]


class Colour(Enum):
    RED = "red"
    GREEN = 2


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Size(str, Enum):
    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: object = None


class Money:
    """Knows how to be sent, as kombu's JSON asks."""

    def __init__(self, cents):
        self.cents = cents

    def __json__(self):
        return {"cents": self.cents, "paid": date(2024, 2, 29)}


text = st.text() | st.text(st.characters(categories=["L", "Nd", "Cc", "Cs", "Zs", "So"]))
floats = st.floats(allow_nan=True, allow_infinity=True)
zones = st.sampled_from(
    [None, timezone.utc, timezone(timedelta(hours=-9, minutes=-30)), ZoneInfo("Europe/Berlin")]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**70), max_value=2**70),
    floats,
    text,
    st.binary(),
)
dates = st.one_of(
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=st.sampled_from([None, timezone.utc, timezone(timedelta(hours=5))])),
)
json_only = st.one_of(
    dates,
    st.uuids(),
    st.decimals(),
    st.sampled_from([*Level, *Size]),
    st.builds(Money, st.integers()),
)
pickle_only = st.one_of(
    st.timedeltas(),
    st.binary().map(bytearray),
    st.sampled_from(list(Colour)),
    st.builds(Point, st.integers(), st.floats()),
    st.frozensets(st.integers() | st.text()),
)
keys = st.text() | st.integers() | floats | st.booleans() | st.none()
odd_keys = (
    keys | st.binary() | st.dates() | st.tuples(st.integers()) | st.sampled_from(list(Colour))
)


def nested(leaves, names=keys):
    """Lists, tuples and dicts of leaves, a few levels deep."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(names, inner, max_size=4)
        ),
        max_leaves=8,
    )


anything = nested(scalars | json_only | pickle_only | st.sets(st.integers()), odd_keys)
# What each serializer may be able to carry; what it refuses is not its concern.
CARRIED = {
    "json": nested(scalars | json_only),
    "pickle": anything,
    "yaml": nested(scalars | dates | st.sets(st.integers() | st.text()), odd_keys),
    "msgpack": nested(
        scalars | st.sampled_from([*Level, *Size]) | st.binary().map(memoryview),  # type: ignore[arg-type]  # it is generic to the checker
        st.text() | st.binary(),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def every_serializer():
    """Kombu accepts the insecure ones while these tests run."""
    disabled = set(registry._disabled_content_types)
    enable_insecure_serializers(SERIALIZERS[1:])
    yield
    registry._disabled_content_types |= disabled


def task(first, second=7, *rest, third=None, **options):
    """The signature that the calls below are made for."""


MAKER = KeyMaker("shop.task", inspect.signature(task))


def name(*args, **kwargs):
    """The one name of a call."""
    (made,) = MAKER.names(args, kwargs)
    return made


def carried(value, serializer):
    """The value as a worker sees it; what the serializer refuses is left out."""
    try:
        content_type, encoding, payload = dumps(value, serializer)
        return loads(payload, content_type, encoding, accept=[content_type])
    except Exception:
        assume(False)


def normal(value):  # noqa: C901, PLR0911, PLR0912 - a list of cases, one after another
    """A second opinion on what is equal: written for clarity, and not for hashing."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        base = next(b for b in (str, int, float) if isinstance(value, b))
        plain = base.__add__(value, base())
        if isinstance(plain, float):
            return "float", "nan" if math.isnan(plain) else plain + 0.0
        if isinstance(plain, str):
            return "str", plain.encode("utf-16", "surrogatepass")
        return "int", plain
    if isinstance(value, (list, tuple)):
        return "list", tuple(map(normal, value))
    if isinstance(value, dict):
        pairs = {json_key(k): normal(v) for k, v in value.items()}
        return "dict", frozenset(pairs.items())
    if isinstance(value, (set, frozenset)):
        return "set", frozenset(map(normal, value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value)
    if isinstance(value, Enum):
        return normal(value.value)
    if dataclasses.is_dataclass(value):
        return normal({"x": value.x, "y": value.y})
    if hasattr(value, "__json__"):
        return normal(value.__json__())
    if isinstance(value, (datetime, time)):
        naive, offset = value.replace(fold=0, tzinfo=None), value.utcoffset()
        if offset is None:
            return type(value).__name__, naive
        if isinstance(value, time):
            naive = datetime.combine(date.min, naive)
        return f"aware {type(value).__name__}", naive - BEGINNING - offset
    if isinstance(value, Decimal) and not value.is_finite():
        return "Decimal", str(value)
    return type(value).__name__, value


def json_key(key):
    """The normal form of a dict key, as JSON makes it."""
    key = key.value if isinstance(key, Enum) else key
    if isinstance(key, (str, float, int)) or key is None:
        words = {True: "true", False: "false"} if isinstance(key, bool) else {None: "null"}
        if key is None or isinstance(key, bool):
            return normal(words[key])
        if isinstance(key, float):
            special = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
            return normal(special.get(repr(key), repr(key)))
        return normal(key if isinstance(key, str) else str(key))
    return normal(key)


class TestSerializers:
    """The producer's name is the worker's name."""

    @pytest.mark.parametrize("serializer", SERIALIZERS)
    @settings(max_examples=150)
    @given(data=st.data())
    def test_a_name_is_the_same_on_the_other_side(self, serializer, data):
        """Whatever a serializer carries gives the name that it gave before."""
        values = data.draw(st.lists(CARRIED[serializer], min_size=1, max_size=3))
        options = data.draw(
            st.dictionaries(st.sampled_from(["third", "x", "y"]), CARRIED[serializer], max_size=2)
        )
        args, kwargs = carried((values, options), serializer)
        assert name(*args, **kwargs) == name(*values, **options)

    @pytest.mark.parametrize("serializer", SERIALIZERS)
    def test_what_is_drawn_is_carried(self, serializer):
        """The property above is not empty: a serializer takes many different values."""
        seen = set()

        @settings(max_examples=200, database=None, derandomize=True)
        @given(CARRIED[serializer])
        def draw(value):
            carried(value, serializer)
            seen.add(canonical(value))

        draw()
        assert len(seen) >= 50

    @given(anything)
    def test_a_name_survives_a_second_journey(self, value):
        """A retry sends what was received: the name stays."""
        once = carried(value, "json")
        assert name(carried(once, "json")) == name(value)

    @example(uuid.UUID(int=5))
    @example(b"\xff")
    @example(Decimal("1.50"))
    @example(datetime(2024, 2, 29, 12, tzinfo=ZoneInfo("Europe/Berlin")))
    @given(json_only)
    def test_what_looks_packed_is_what_it_will_be_unpacked_to(self, value):
        """A dict in the form in which kombu's JSON packs a value becomes that value."""
        content_type, encoding, payload = dumps(value, "json")
        packed = json.loads(payload)
        assert name(packed) == name(loads(payload, content_type, encoding))


class TestEqualCalls:
    """Calls that Python treats alike have one name."""

    @given(anything, anything)
    def test_an_argument_may_be_spelt_either_way(self, first, second):
        """By position or by keyword, in any order."""
        names = {
            name(first, second),
            name(first, second=second),
            name(second=second, first=first),
            name(first=first, second=second),
        }
        assert len(names) == 1

    @given(anything)
    def test_a_default_may_be_spelt_out(self, first):
        """What is not given is what the signature says."""
        assert (
            name(first) == name(first, 7) == name(first, third=None) == name(first, 7, third=None)
        )

    @given(st.dictionaries(st.sampled_from("abcdefgh"), scalars), st.randoms())
    def test_order_makes_no_difference(self, options, random):
        """Of keyword arguments, and of the keys of a dict at any depth."""
        pairs = list(options.items())
        random.shuffle(pairs)
        shuffled = dict(pairs)
        assert name(1, **options) == name(1, **shuffled)
        assert name({"in": [options]}) == name({"in": [shuffled]})

    @given(st.lists(st.integers() | st.text()))
    def test_a_set_has_no_order(self, members):
        """Sets with the same members have one name, frozen or not."""
        assert name(set(members)) == name(frozenset(reversed(members)))

    @given(st.datetimes(timezones=st.just(timezone.utc)), st.timedeltas())
    def test_an_instant_is_the_same_in_every_zone(self, instant, offset):
        """Aware datetimes are told apart by their instant."""
        assume(abs(offset) < timedelta(hours=24))
        try:
            elsewhere = instant.astimezone(timezone(offset))
        except OverflowError:
            assume(False)
        assert name(elsewhere) == name(instant)

    @given(anything, anything)
    def test_names_are_equal_exactly_when_the_values_are(self, one, other):
        """A second, independent notion of equality agrees."""
        assert (name(one) == name(other)) == (normal(one) == normal(other))

    @given(anything)
    def test_a_copy_has_the_same_name(self, value):
        """Nothing depends on identity, on hashes or on the order of making."""
        assert name(pickle.loads(pickle.dumps(value))) == name(value)


class TestDifferentCalls:
    """Calls that differ have different names."""

    @given(nested(scalars), nested(scalars))
    def test_different_arguments_have_different_names(self, one, other):
        """Two values that aren't equal never share a name."""
        assume(normal(one) != normal(other))
        assert name(one) != name(other)

    @given(nested(scalars), nested(scalars))
    def test_arguments_do_not_run_together(self, one, other):
        """Swapping two different arguments, or joining them in a list, is another call."""
        assume(normal(one) != normal(other))
        assert len({name(one, other), name(other, one), name([one, other])}) == 3

    @given(st.lists(anything, max_size=3), st.lists(anything, max_size=3))
    def test_the_texts_of_lists_do_not_run_together(self, one, other):
        """However lists are nested, each has a text of its own."""
        values = [one, [one], [one, other], [[one], other], one + other]
        texts = {canonical(value) for value in values}
        assert len(texts) == len({normal(value) for value in values})

    @pytest.mark.parametrize(
        "one, other",
        [
            (True, 1),
            (1, 1.0),
            (False, None),
            (0, None),
            ("", None),
            ("1", 1),
            (b"a", "a"),
            (uuid.UUID(int=1), str(uuid.UUID(int=1))),
            (Decimal(1), 1),
            (Decimal("1.5"), 1.5),
            (date(2024, 1, 1), NEW_YEAR),
            (date(2024, 1, 1), "2024-01-01"),
            (NEW_YEAR, NEW_YEAR.replace(tzinfo=timezone.utc)),
            (time(1), "01:00:00"),
            (time(1), time(1, tzinfo=timezone.utc)),
            (timedelta(seconds=1), 1),
            ({1, 2}, [1, 2]),
            ([], {}),
            ([], [None]),
            ({"a": None}, {}),
            ("a,b", ["a", "b"]),
            (float("inf"), float("-inf")),
            ({b"a": 1}, {"a": 1}),
        ],
        ids=repr,
    )
    def test_values_of_different_kinds_never_meet(self, one, other):
        """Neither as arguments nor anywhere within one."""
        assert name(one) != name(other)
        assert name({"k": [one]}) != name({"k": [other]})


def by_repr(args, kwargs):
    """A key as many people make it."""
    return f"{args!r}{sorted(kwargs.items())!r}"


def by_bound_repr(args, kwargs):
    """A key as somebody makes it who thought of defaults."""
    bound = inspect.signature(task).bind(*args, **kwargs)
    bound.apply_defaults()
    return repr(bound.arguments)


def by_str(args, kwargs):
    """A key that is meant to be readable."""
    return "-".join(map(str, [*args, *kwargs.values()]))


class TestTheTestsCatchIt:
    """Negative controls: each property fails for a key that is made the obvious way."""

    @pytest.mark.parametrize(
        "naive, one, other",
        [
            (by_repr, ((1,), {}), ((), {"first": 1})),
            (by_repr, ((1,), {}), ((1, 7), {})),
            (by_bound_repr, (({"a": 1, "b": 2},), {}), (({"b": 2, "a": 1},), {})),
            (by_str, ((1,), {"second": 7}), ((1,), {})),
        ],
    )
    def test_equal_calls_differ_by_a_naive_key(self, naive, one, other):
        """What our names call equal, a representation tells apart."""
        assert naive(*one) != naive(*other)
        assert name(*one[0], **one[1]) == name(*other[0], **other[1])

    @pytest.mark.parametrize("naive", [by_str])
    def test_different_calls_meet_by_a_naive_key(self, naive):
        """What our names tell apart, plain text calls equal."""
        one, other = (("1-2",), {}), ((1,), {"second": 2})
        assert naive(*one) == naive(*other)
        assert name("1-2") != name(1, second=2)

    @pytest.mark.parametrize(
        "serializer, value",
        [
            ("json", (1, 2)),
            ("json", {1: "a"}),
            ("yaml", (1, 2)),
            ("yaml", datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
            ("msgpack", bytearray(b"a")),
            ("pickle", Money(5)),
        ],
    )
    def test_a_serializer_changes_a_naive_key(self, serializer, value):
        """The worker's representation is not the producer's; our name is."""
        received = carried(value, serializer)
        assert by_bound_repr((received,), {}) != by_bound_repr((value,), {})
        assert name(received) == name(value)
