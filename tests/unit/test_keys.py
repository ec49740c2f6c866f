"""From a call to the name of its lock: bindings, templates, callables, and every refusal."""

import dataclasses
import inspect
import re
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from kombu.utils import json as kombu_json

from celery_redlock.canonical import MAX_DEPTH
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.keys import KeyMaker


def pay(account_id, cents=100, *, note=None, fencing_token):
    """The task of most tests here."""


def collect(first, /, *rest, day, **options):
    """A task with every kind of parameter."""


def maker(function=pay, task_name="shop.pay", **options):
    """The key maker of a function."""
    return KeyMaker(task_name, inspect.signature(function), **options)


def only(made):
    """The one name that was made."""
    (name,) = made
    return name


def refusal(function=pay, args=None, kwargs=None, **options):
    """What a call is refused with."""
    with pytest.raises(ImproperlyConfigured) as caught:
        maker(function, **options).names(args if args is not None else (1,), kwargs or {})
    return str(caught.value)


class TestDefaultNames:
    """Without options: a readable start, and a hash over everything."""

    def test_it_is_readable_and_hides_the_arguments(self):
        """The task's name in clear, then 128 bits in hexadecimal, and no argument."""
        name = only(maker().names(("secret-account",), {"note": "secret-note"}))
        assert re.fullmatch(r"shop\.pay:[0-9a-f]{32}", name)

    def test_it_never_changes_by_itself(self):
        """Producers and workers of two releases must agree: this name is pinned."""
        name = only(maker().names((1,), {"note": ["a", 1.5, None, True]}))
        assert name == "shop.pay:c994bfc42a50c2e735c03a1f767db3f8"

    def test_a_long_task_name_is_cut_and_hashed_whole(self):
        """Two long names with the same start have different locks."""
        one, other = (only(maker(task_name="a" * 150 + end).names((1,), {})) for end in ("x", "y"))
        assert one.startswith("a" * 100 + ":")
        assert len(one) == 133
        assert one != other

    def test_tasks_do_not_meet(self):
        """The same arguments to another task are another lock."""
        assert maker(task_name="a").names((1,), {}) != maker(task_name="b").names((1,), {})

    def test_the_fencing_token_is_no_part_of_it(self):
        """Whether or not one is handed in."""
        assert maker().names((1,), {"fencing_token": 5}) == maker().names((1,), {})

    def test_a_token_parameter_anywhere_is_left_out(self):
        """Also where it stands before or between the arguments."""

        def first(fencing_token, account_id, cents): ...

        def second(account_id, fencing_token, cents): ...

        assert maker(first).names((1, 2), {}) == maker(second).names((1,), {"cents": 2})

    def test_the_order_of_parameters_makes_no_difference(self):
        """To reorder a signature changes no lock, as the arguments go by their names."""

        def one(a, b): ...

        def other(b, a): ...

        assert maker(one).names((1, 2), {}) == maker(other).names((2, 1), {})

    def test_every_kind_of_parameter_takes_part(self):
        """Positional-only, collected, keyword-only and free keyword arguments."""
        make = maker(collect)
        names = [
            make.names(args, kwargs)
            for args, kwargs in [
                ((1,), {"day": 1}),
                ((2,), {"day": 1}),
                ((1, 2), {"day": 1}),
                ((1, 2, 3), {"day": 1}),
                ((1,), {"day": 2}),
                ((1,), {"day": 1, "x": 1}),
                ((1,), {"day": 1, "first": 1}),
            ]
        ]
        assert len(set(names)) == len(names)

    def test_a_megabyte_is_fine(self):
        """The name stays short, and the last byte counts."""
        big = b"x" * 1_000_000
        name = only(maker().names((big,), {}))
        assert len(name) < 50
        assert name != only(maker().names((big[:-1] + b"y",), {}))

    def test_a_long_number_is_fine(self):
        """Longer than Python writes in decimal digits."""
        assert maker().names((10**6000,), {}) != maker().names((10**6000 + 1,), {})


class TestLockArgs:
    """``lock_args`` says which arguments matter."""

    def test_only_the_named_ones_count(self):
        """Everything else may differ."""
        make = maker(args=["account_id"])
        assert make.names((1, 5), {}) == make.names((1, 6), {"note": "x"})
        assert make.names((1,), {}) != make.names((2,), {})

    def test_none_may_matter(self):
        """An empty list: one lock for the whole task."""
        make = maker(args=())
        assert make.names((1,), {}) == make.names((2, 3), {"note": object()})

    def test_their_order_makes_no_difference(self):
        """Two ways to list the same arguments."""
        one, other = (
            maker(args=names) for names in (["cents", "account_id"], ["account_id", "cents"])
        )
        assert one.names((1, 2), {}) == other.names((1, 2), {})

    def test_all_of_them_is_the_default(self):
        """To list every argument changes nothing."""
        assert maker(args=["account_id", "cents", "note"]).names((1,), {}) == maker().names(
            (1,), {}
        )

    def test_an_unsupported_argument_can_be_left_out(self):
        """The cure that the error names works."""
        assert maker(args=["account_id"]).names((1, object()), {})

    def test_an_unknown_name_is_refused_at_once(self):
        """With the nearest right one."""
        with pytest.raises(ImproperlyConfigured) as caught:
            maker(args=["acount_id"])
        assert str(caught.value) == (
            "task shop.pay: lock_args names 'acount_id', which is no argument of it; did you mean "
            "'account_id'? (its arguments: 'account_id', 'cents', 'note')"
        )

    def test_the_token_is_refused(self):
        """A key with the token in it would never meet itself."""
        with pytest.raises(ImproperlyConfigured, match="'fencing_token', which is never part"):
            maker(args=["fencing_token"])


class TestCallsThatDoNotFit:
    """A wrong call is refused in Python's own words."""

    @pytest.mark.parametrize(
        "args, kwargs",
        [
            ((), {}),
            ((1, 2, 3), {}),
            ((1,), {"acount": 2}),
            ((1,), {"account_id": 2}),
        ],
    )
    def test_the_words_are_those_of_a_call(self, args, kwargs):
        """The very message that calling the function gives."""

        def pay(account_id, cents=100, *, note=None): ...

        pay.__qualname__ = "pay"
        with pytest.raises(TypeError) as direct:
            pay(*args, **kwargs)
        with pytest.raises(TypeError) as ours:
            maker(pay).names(args, kwargs)
        assert str(ours.value) == str(direct.value)

    def test_an_explicit_key_refuses_them_too(self):
        """No key is made for a call that can't run."""
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            maker(key="constant").names((), {})


@dataclasses.dataclass
class Order:
    id: int
    lines: list = dataclasses.field(default_factory=list)


class Model:
    """Dumps itself as pydantic's models do."""

    def __init__(self, **values):
        self.__dict__ = values

    def model_dump(self):
        return dict(self.__dict__)


class Failing:
    def __json__(self):
        raise RuntimeError("secret")


def without_address(value):
    """A readable test id that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class Wrapped:
    """Sends itself, as kombu's JSON asks."""

    def __init__(self, value):
        self.value = value

    def __json__(self):
        return {"value": self.value}

    def __repr__(self):  # a test's name, the same in every process
        return f"Wrapped({self.value!r})"


class Unknown:
    def __repr__(self):
        return "secret"


class Colour(Enum):
    RED = "red"


class Text(str):
    __slots__ = ()

    def __str__(self):
        return "something else"


class TestKindsOfValues:
    """What an argument may be, beyond what the properties draw."""

    @pytest.mark.parametrize(
        "value, same",
        [
            (Order(5, [1]), {"id": 5, "lines": [1]}),
            (Model(a=1, b={"c": UUID(int=1)}), {"a": 1, "b": {"c": UUID(int=1)}}),
            (Wrapped(Order(1)), {"value": Order(1)}),
            (Text("a"), "a"),
            (memoryview(b"abcd")[::2], b"ac"),
            (Decimal("0E+5"), Decimal(0)),
            (Decimal("1E+2"), Decimal("100.0")),
            (-0.0, 0.0),
            ("\ud83d\ude00", "\U0001f600"),
            (float("nan"), -float("nan")),
            (
                datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
                datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)), fold=1),
            ),
        ],
        ids=without_address,
    )
    def test_these_are_one(self, value, same):
        """Objects are their data, and equal values of a kind are one value."""
        assert maker().names((value,), {}) == maker().names((same,), {})

    def test_a_type_that_is_registered_with_kombu_works(self):
        """Whoever taught kombu's JSON a type need not teach us."""

        class Money:
            def __init__(self, cents):
                self.cents = cents

        kombu_json.register_type(Money, "money", lambda m: m.cents, Money)
        try:
            one, again, other = (maker().names((Money(n),), {}) for n in (1, 1, 2))
            sent = kombu_json.loads(kombu_json.dumps(Money(1)))
            assert isinstance(sent, Money)
            assert one == again == maker().names((sent,), {})
            assert one != other
        finally:
            kombu_json._encoders.pop(Money)
            kombu_json._decoders.pop("money")

    def test_a_lazy_text_of_django_is_its_text(self):
        """Kombu's JSON sends it as text, so the worker sees text."""
        promise = type("Promise", (), {"__module__": "django.utils.functional"})
        lazy = type("__proxy__", (promise,), {"__str__": lambda self: "hello"})
        assert maker().names((lazy(),), {}) == maker().names(("hello",), {})

    def test_of_two_keys_that_are_one_the_later_counts(self):
        """As JSON does with 1 and "1"."""
        assert maker().names(({1: "a", "1": "b"},), {}) == maker().names(({"1": "b"},), {})


class TestRefusedValues:
    """What can't be part of a name: said with its place, never with its value."""

    def test_the_whole_message(self):
        """Argument and path, type, what is allowed, and both cures."""
        message = refusal(kwargs={"note": {"items": [1, 2, Unknown()]}})
        where = f"{Unknown.__module__}.Unknown"
        assert message == (
            f"task shop.pay: argument 'note'['items'][2] is of type {where}, so it can't be part "
            "of the lock's key; a key can be made of None, bool, int, float, str, bytes, UUID, "
            "Decimal, dates and times, Enum members, lists, tuples, sets and dicts of those, "
            "dataclasses, models with model_dump(), and objects with __json__(). Leave this "
            "argument out with lock_args=['account_id', 'cents'], or make the key yourself with "
            "lock_key='shop.pay:{...}' or a callable"
        )

    @pytest.mark.parametrize(
        "value, place, problem",
        [
            (object(), "", "is of type object"),
            ({"a": {1: {None: object()}}}, "['a'][1][a NoneType]", "is of type object"),
            ({object(): 1}, "[a object]", "is of type object"),
            ({frozenset([1j])}, "{…}{…}", "is of type complex"),
            (Order(1, [object()]), "['lines'][0]", "is of type object"),
            ((letter for letter in ""), "", "is of type generator"),
            (Order, "", "is a class, not a value"),
            (Wrapped, "", "is a class, not a value"),
            (Failing(), "", "and to ask it for its data raised RuntimeError"),
            (print, "", "is of type builtin_function_or_method"),
            ({"k" * 99: object()}, "['" + "k" * 38 + "…]", "is of type object"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_each_is_named_by_its_place_and_type(self, value, place, problem):
        """Wherever it is hidden."""
        message = refusal(args=(value,))
        assert message.startswith(f"task shop.pay: argument 'account_id'{place} is ")
        assert problem in message

    def test_no_value_is_shown(self):
        """Neither the object's own text nor that of its neighbours."""
        assert "secret" not in refusal(args=(["secret", Unknown()],))
        assert "secret" not in refusal(args=(Failing(),))

    def test_a_cycle_is_refused(self):
        """An argument that contains itself has no end."""
        cycle = []
        cycle.append(cycle)
        message = refusal(args=({"in": cycle},))
        assert "argument 'account_id'['in'][0][0][0][0]…[0][0] is nested deeper than" in message

    def test_absurd_depth_is_refused(self):
        """The bound is the documented one, to the level."""
        value = None
        for _ in range(MAX_DEPTH + 1):
            value = [value]
        assert maker().names((value,), {})
        assert f"is nested deeper than {MAX_DEPTH} levels" in refusal(args=([value],))

    def test_an_object_that_reduces_to_itself_is_refused(self):
        """A method of its own can be endless as well."""

        class Endless:
            def __json__(self):
                return [self]

        assert "or contains itself" in refusal(args=(Endless(),))

    def test_a_nearly_full_stack_gives_the_same_clear_error(self):
        """Where Python itself runs out of depth first."""
        value = None
        for _ in range(MAX_DEPTH):
            value = [value]

        def deep(levels):
            if levels:
                return deep(levels - 1)
            return maker().names((value,), {})

        spare = 1000 - len(inspect.stack(0)) - 60
        with pytest.raises(ImproperlyConfigured, match="is nested too deeply"):
            deep(spare)


class TestTemplates:
    """``lock_key`` as a template."""

    @pytest.mark.parametrize(
        "template, value, expected",
        [
            ("account:{account_id}", 5, "account:5"),
            ("{account_id}", "é", "é"),
            ("{account_id:05d}", 42, "00042"),
            ("{account_id:%Y-%m}", date(2024, 2, 29), "2024-02"),
            ("{account_id!r}", "a", "'a'"),
            ("{account_id!a}", "é", "'\\xe9'"),
            ("{account_id!s:>4}", 5, "   5"),
            ("{{{account_id}}}", 5, "{5}"),
            ("{account_id}/{cents}/{account_id}", 1, "1/100/1"),
            ("{account_id}", Colour.RED, "red"),
            ("{account_id}", Text("a"), "a"),
            ("{account_id}", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            ("{account_id}", Decimal("1.50"), "1.50"),
            ("{account_id}", None, "None"),
            ("{account_id}", True, "True"),
            ("{account_id}", b"a\xff", "a\\xff"),
            ("{account_id}", time(1, 2), "01:02:00"),
            ("{account_id}", (1, "a", None), '[1,"a",null]'),
            ("{account_id}", {"b": 1, "a": UUID(int=0)}, '{"a":"' + str(UUID(int=0)) + '","b":1}'),
            ("{account_id}", {10: 1, 9: 2}, '{"10":1,"9":2}'),
            ("{account_id}", {2, 1}, "[1,2]"),
            ("{account_id}", Wrapped(5), '{"value":5}'),
            ("{account_id}", Order(1, [Colour.RED]), '{"id":1,"lines":["red"]}'),
            ("{account_id}", [Model(a=b"b")], '[{"a":"b"}]'),
            ("{account_id.id}", Order(5), "5"),
            ("{account_id[id]}", Order(5), "5"),
            ("{account_id.id}", {"id": 5}, "5"),
            ("{account_id[id]}", {"id": 5}, "5"),
            ("{account_id[1]}", {1: "a"}, "a"),
            ("{account_id[1]}", ["a", "b"], "b"),
            ("{account_id.value[x].id}", Wrapped({"x": [Order(7)][0]}), "7"),
            ("{account_id.id}", Model(id=9), "9"),
            ("{account_id.year}", date(2024, 1, 1), "2024"),
            ("{account_id[a b]}", {"a b": 1}, "1"),
        ],
    )
    def test_it_is_formatted_from_the_bound_arguments(self, template, value, expected):
        """Names, attributes, items, conversions and formats."""
        assert maker(key=template).names((value,), {}) == (expected,)

    @pytest.mark.parametrize(
        "value",
        [
            (1, (2, 3)),
            {1: {2: None}},
            datetime(2024, 7, 1, 12, 30, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            Wrapped(date(2024, 1, 1)),
            Decimal("1.50"),
            UUID(int=7),
            1e22,
            "\ud83d\ude00",
        ],
        ids=without_address,
    )
    @pytest.mark.parametrize("template", ["{account_id}", "{account_id!s:x>40}"])
    def test_the_text_is_the_same_at_the_worker(self, template, value):
        """After JSON, which turns tuples into lists and zones into offsets."""
        make = maker(key=template)
        received = kombu_json.loads(kombu_json.dumps(value))
        assert make.names((received,), {}) == make.names((value,), {})

    def test_a_zone_is_written_as_its_offset(self):
        """The name of a zone doesn't travel."""
        summer = datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
        assert only(maker(key="{account_id:%Z}").names((summer,), {})) == "UTC+02:00"

    def test_a_default_counts_as_given(self):
        """An argument that is left out has its default."""
        assert maker(key="{cents}").names((1,), {}) == ("100",)

    def test_free_keyword_arguments_can_be_named(self):
        """Through the parameter that collects them."""
        make = maker(collect, key="{options[shop]}:{rest[0]}")
        assert make.names((1, 2), {"day": 1, "shop": "x"}) == ("x:2",)

    def test_a_constant_is_one_lock_for_every_call_and_task(self):
        """Several tasks that name it share it."""
        one, other = (maker(task_name=name, key="ledger") for name in ("a", "b"))
        assert one.names((1,), {}) == other.names((2,), {}) == ("ledger",)

    def test_a_long_key_is_shortened(self):
        """Up to 400 bytes as given; above, a readable start and a hash of all of it."""
        make = maker(key="{account_id}")
        assert make.names(("a" * 400,), {}) == ("a" * 400,)
        one, other = (only(make.names(("é" * 200 + end,), {})) for end in ("x", "y"))
        assert re.fullmatch("é{100}:[0-9a-f]{32}", one)
        assert one != other

    def test_half_a_character_makes_a_storable_name(self):
        """No lock server takes it in clear."""
        one, other = (only(maker(key="{account_id}").names((f"a{c}",), {})) for c in "\ud800\ud801")
        assert re.fullmatch(r"a\\ud800:[0-9a-f]{32}", one)
        assert one != other

    @pytest.mark.parametrize(
        "template, problem",
        [
            (
                "account:{acount_id}",
                "names 'acount_id', which is no argument of it; did you mean 'account_id'?",
            ),
            ("{fencing_token}", "names 'fencing_token', which is never part of a key"),
            ("{}", "has the placeholder {}, which has no name; name an argument, as in"),
            ("{0}", "has the placeholder {0}, which has no name"),
            ("{0.id}", "has the placeholder {0.id}, which has no name"),
            ("{account_id", "is malformed (expected '}' before end of string)"),
            ("account_id}", "is malformed (Single '}' encountered"),
            ("{account_id.}", "has the placeholder {account_id.}, which is malformed"),
            ("{account_id[}", "is malformed"),
            ("{account id}", "has the placeholder {account id}, which is malformed"),
            ("{cents:{account_id}}", "with a format that is not supported"),
            ("{cents!x}", "with a format that is not supported"),
        ],
    )
    def test_a_wrong_template_is_refused_at_once(self, template, problem):
        """When the task is bound, and not only when it is called."""
        with pytest.raises(ImproperlyConfigured) as caught:
            maker(key=template)
        message = str(caught.value)
        assert message.startswith(f"task shop.pay: lock_key={template!r} ")
        assert problem in message

    @pytest.mark.parametrize(
        "template, value, problem",
        [
            ("{account_id}", "", "gave an empty key; a key needs a character at least"),
            ("{account_id.id}", {"no": 1}, "and this call's argument has no such part"),
            ("{account_id.id}", Wrapped(1), "and this call's argument has no such part"),
            ("{account_id[5]}", [1], "and this call's argument has no such part"),
            ("{account_id.id}", 5, "and this call's argument has no such part"),
            ("{account_id.value}", Failing(), "raised RuntimeError; name a part of it"),
            ("{account_id:%Y}", "a", "with the format '%Y', which doesn't fit a str"),
            ("{account_id:05d}", None, "with the format '05d', which doesn't fit a NoneType"),
            ("{account_id}", Unknown(), "Unknown; name a part of it"),
            ("{account_id}", [Unknown()], "Unknown; name a part of it"),
        ],
    )
    def test_a_call_that_makes_no_key_is_refused(self, template, value, problem):
        """With the task, the template and the placeholder, and no value."""
        message = refusal(args=(value,), key=template)
        assert message.startswith(f"task shop.pay: lock_key={template!r} ")
        assert problem in message
        assert "secret" not in message


class TestCallables:
    """``lock_key`` as a callable."""

    @pytest.mark.parametrize(
        "key, expected",
        [
            (lambda account_id: f"a:{account_id}", "a:1"),
            (lambda cents, account_id: f"{account_id}:{cents}", "1:100"),
            (lambda account_id, other="x": f"{account_id}:{other}", "1:x"),
            (lambda account_id, /, cents: f"{account_id}:{cents}", "1:100"),
            (lambda bound: ",".join(sorted(bound)), "account_id,cents,note"),
            (lambda bound, /: str(bound["cents"]), "100"),
            (lambda *, bound: str(bound["cents"]), "100"),
            (lambda **all_of_them: ",".join(sorted(all_of_them)), "account_id,cents,note"),
            (lambda account_id, **rest: f"{account_id}:{sorted(rest)}", "1:['cents', 'note']"),
            (lambda *args, **kwargs: f"{args}{kwargs}", "(1,){'note': 'n'}"),
            (lambda *args, note: f"{args}{note}", "(1,)n"),
            (lambda: "constant", "constant"),
            (partial(lambda prefix, account_id: f"{prefix}{account_id}", "p"), "p1"),
            (lambda account_id: account_id, "1"),
            (lambda bound: Text("a"), "a"),
            (lambda bound: Colour.RED.value, "red"),
        ],
    )
    def test_it_is_called_as_its_own_signature_asks(self, key, expected):
        """By the names that it accepts, with a dict of all, or with the call as it was."""
        assert maker(key=key).names((1,), {"note": "n"}) == (expected,)

    def test_it_sees_what_the_task_collects(self):
        """Also the free arguments, by the names of their parameters."""
        make = maker(collect, key=repr)
        assert make.names((1, 2), {"day": 3, "x": 4}) == (
            "{'first': 1, 'rest': (2,), 'day': 3, 'options': {'x': 4}}",
        )

    def test_it_may_give_several(self):
        """All of them are taken, in sorted order, none of them twice."""
        make = maker(key=lambda account_id: [f"b{account_id}", "a", "b1", 7])
        assert make.names((1,), {}) == ("7", "a", "b1")

    def test_a_list_of_keys_gives_all_of_them(self):
        """Templates and callables mixed, sorted, without duplicates."""
        make = maker(key=["z:{account_id}", "a:{cents}", lambda account_id: "a:100"])
        assert make.names((1,), {}) == ("a:100", "z:1")

    @pytest.mark.parametrize(
        "result, problem",
        [
            (None, "gave a NoneType; it must give a str that is not empty, an int, or a list"),
            (True, "gave a bool; it must give"),
            (1.5, "gave a float; it must give"),
            (b"a", "gave a bytes; it must give"),
            ({"a": 1}, "gave a dict; it must give"),
            (["a", None], "gave a list with a NoneType; it must give"),
            ([], "gave an empty list; a call needs a key at least"),
            ("", "gave an empty key; a key needs a character at least"),
            (["a", ""], "gave an empty key; a key needs a character at least"),
        ],
    )
    def test_a_wrong_result_is_refused(self, result, problem):
        """With the task's name, and what came."""

        def make_key(account_id):
            return result

        message = refusal(key=make_key)
        assert message.startswith("task shop.pay: the callable lock_key ")
        assert "make_key" in message
        assert problem in message

    def test_one_that_wants_what_is_no_argument_is_refused_at_once(self):
        """With the nearest right name."""
        with pytest.raises(ImproperlyConfigured) as caught:
            maker(key=lambda acount_id, cents: "")
        assert "wants 'acount_id', which is no argument of it; did you mean 'account_id'?" in str(
            caught.value
        )

    def test_one_that_hides_its_signature_is_refused_at_once(self):
        """Some built-in functions don't say what they take."""
        with pytest.raises(ImproperlyConfigured, match="doesn't tell its arguments"):
            maker(key=min)

    def test_its_own_error_is_its_own(self):
        """What a user's function raises comes out as it is."""
        with pytest.raises(ZeroDivisionError):
            maker(key=lambda account_id: 1 // 0).names((1,), {})
