"""Options: every validation with its message, and the layering of the four levels."""

import dataclasses
import itertools
import re
from datetime import timedelta

import pytest

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.options import OPTION_NAMES, Level, LockOptions, check_names, seconds

CALL = Level("the call", {}, "lock['{}']")
TASK = Level("task shop.pay", {}, "lock_{}")
QUEUE = Level("queue 'billing'", {}, "redlock_queues['billing']['{}']")
APPLICATION = Level("the application", {}, "redlock_{}")
LEVELS = (CALL, TASK, QUEUE, APPLICATION)


def callable_key(account_id):
    """A key of one's own."""
    return f"account:{account_id}"


# Four values for each option that may stand at four levels at once.
FOUR = {
    "mode": None,  # has a rule of its own, below
    "coordinator": ("a", "b", "etcd://e:2379", ("redis://1", "redis://2", "redis://3")),
    "key": ("a:{x}", "b", callable_key, ("c:{x}", "d")),
    "args": (("a",), ("b",), (), ("c", "d")),
    "scope": ("while_executing", "until_executing", "until_executed", "until_expired"),
    "ttl": (31.0, 32.0, 33.0, 34.0),
    "renew_interval": (1.0, 2.0, 3.0, 4.0),
    "wait": (0.0, 1.0, 2.0, 3.0),
    "on_conflict": ("skip", "revoke", "reschedule", "raise"),
    "on_duplicate": ("return_existing", "raise", "keep_latest", "replace"),
    "on_unavailable": ("run", "reschedule", "raise", "run"),
    "on_lost": ("abort", "flag", "kill", "abort"),
    "min_hold": (0.0, 1.0, 2.0, 3.0),
    "max_hold": (10.0, 11.0, 12.0, 13.0),
    "queue_ttl": (100.0, 101.0, 102.0, 103.0),
    "reschedule_delay": ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0)),
    "give_up_after": (20.0, 21.0, 22.0, 23.0),
}


def at(level, **values):
    """The level with options written at it."""
    return Level(level.where, values, level.spelling)


def refusal(**values):
    """What options at a task are refused with."""
    with pytest.raises(ImproperlyConfigured) as caught:
        LockOptions.layered(at(TASK, **values))
    return str(caught.value)


def test_the_defaults_are_those_of_the_documentation():
    """Without any option a lock has the documented defaults."""
    assert dataclasses.asdict(LockOptions.layered()) == {
        "mode": "efficiency",
        "coordinator": "default",
        "key": None,
        "args": None,
        "scope": "while_executing",
        "ttl": 30.0,
        "renew_interval": 10.0,
        "wait": 0.0,
        "on_conflict": "skip",
        "on_duplicate": "return_existing",
        "on_unavailable": "run",
        "on_lost": "abort",
        "min_hold": 0.0,
        "max_hold": None,
        "queue_ttl": 3600.0,
        "reschedule_delay": (1.0, 30.0),
        "give_up_after": None,
    }


def test_correctness_mode_has_stricter_defaults():
    """In correctness mode nothing is dropped and nothing runs unlocked unless asked."""
    options = LockOptions(mode="correctness")
    assert (options.on_conflict, options.on_unavailable) == ("reschedule", "reschedule")


def test_the_renewal_follows_the_ttl():
    """Unless given, the renewal interval is a third of the ttl."""
    assert LockOptions(ttl=9).renew_interval == 3.0
    assert LockOptions(ttl=timedelta(minutes=1)).renew_interval == 20.0


def test_every_option_has_four_values_here():
    """The matrix below leaves no option out."""
    assert set(FOUR) == set(OPTION_NAMES)


@pytest.mark.parametrize("name", [name for name, values in FOUR.items() if values])
def test_the_nearest_level_wins(name):
    """Of all sixteen ways to write an option at four levels, each gives the nearest value."""
    for chosen in itertools.product((False, True), repeat=4):
        if not any(chosen):
            continue
        levels = [
            at(level, **({name: value} if written else {}))
            for level, value, written in zip(LEVELS, FOUR[name], chosen, strict=True)
        ]
        nearest = FOUR[name][chosen.index(True)]
        assert getattr(LockOptions.layered(*levels), name) == nearest


MODES = list(itertools.product((None, "efficiency", "correctness"), repeat=4))


@pytest.mark.parametrize("modes", MODES)
def test_the_stricter_mode_wins(modes):
    """Correctness at any level is correctness, whatever a nearer level says."""
    levels = [
        at(level, **({} if mode is None else {"mode": mode}))
        for level, mode in zip(LEVELS, modes, strict=True)
    ]
    expected = "correctness" if "correctness" in modes else "efficiency"
    assert LockOptions.layered(*levels).mode == expected


def test_a_misspelt_mode_is_refused_even_at_a_level_that_loses():
    """A typing error must not quietly turn correctness off."""
    levels = at(TASK, mode="efficiency"), at(APPLICATION, mode="corectness")
    with pytest.raises(ImproperlyConfigured, match=r"redlock_mode='corectness' \(the application"):
        LockOptions.layered(*levels)


def test_none_at_a_near_level_means_the_default():
    """None written near puts a farther value out of use."""
    options = LockOptions.layered(at(TASK, max_hold=None), at(APPLICATION, max_hold=5))
    assert options.max_hold is None


def test_a_nearer_key_puts_farther_args_out_of_use():
    """The nearer of key and args counts, since only one of them can."""
    options = LockOptions.layered(at(TASK, key="k"), at(QUEUE, args=["a"]))
    assert (options.key, options.args) == ("k", None)


def test_nearer_args_put_a_farther_key_out_of_use():
    """The other way round, too."""
    options = LockOptions.layered(at(CALL, args=["a"]), at(APPLICATION, key="k"))
    assert (options.key, options.args) == (None, ("a",))


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_each_name_with_a_typing_error_suggests_the_right_one(name):
    """A doubled letter is recognised in every option's name."""
    with pytest.raises(ImproperlyConfigured) as caught:
        check_names(at(TASK, **{name + name[-1]: 1}))
    assert f"did you mean lock_{name}?" in str(caught.value)


def test_an_unknown_name_is_refused_in_words():
    """The message has the name as written, the place, the right one and all that are known."""
    expected = (
        "unknown option lock_tll (task shop.pay); did you mean lock_ttl? (known: lock_mode, "
        "lock_coordinator, lock_key, lock_args, lock_scope, lock_ttl, lock_renew_interval, "
        "lock_wait, lock_on_conflict, lock_on_duplicate, lock_on_unavailable, lock_on_lost, "
        "lock_min_hold, lock_max_hold, lock_queue_ttl, lock_reschedule_delay, "
        "lock_give_up_after)"
    )
    assert refusal(tll=1) == expected


@pytest.mark.parametrize(
    "foreign, ours",
    [
        ("timeout", "ttl"),
        ("lock_expiry", "queue_ttl"),
        ("unique_on", "args"),
        ("keys", "args"),
        ("graceful", "on_duplicate"),
        ("blocking_timeout", "wait"),
    ],
)
def test_names_of_other_plugins_are_translated(foreign, ours):
    """Somebody who comes from another plugin is told our name for it."""
    assert f"did you mean lock_{ours}?" in refusal(**{foreign: 1})


def test_a_name_like_no_other_gets_no_suggestion():
    """A wild guess would be worse than none."""
    assert "did you mean" not in refusal(zzz=1)


@pytest.mark.parametrize("name", ["mode", "scope", "on_conflict", "on_duplicate", "on_lost"])
@pytest.mark.parametrize("value", ["nonsense", "", 1, True, ["skip"]])
def test_a_choice_must_be_one_of_its_values(name, value):
    """The message has the option as written, its value, the place and every value allowed."""
    message = refusal(**{name: value})
    assert message.startswith(f"lock_{name}={value!r} (task shop.pay): must be one of '")


def test_the_message_lists_what_is_allowed():
    """One message, whole."""
    assert refusal(on_unavailable="wait") == (
        "lock_on_unavailable='wait' (task shop.pay): must be one of 'run', 'reschedule', 'raise'"
    )


ABOVE_ZERO = ["ttl", "renew_interval", "max_hold", "queue_ttl", "give_up_after"]
FROM_ZERO = ["wait", "min_hold"]


@pytest.mark.parametrize("name", ABOVE_ZERO + FROM_ZERO)
@pytest.mark.parametrize(
    "value", [-1, "30", float("nan"), float("inf"), True, [1], timedelta(seconds=-1)], ids=repr
)
def test_a_duration_must_be_a_number_of_seconds(name, value):
    """Texts, truth values, negative and endless times are refused for every duration."""
    bound = "more than 0" if name in ABOVE_ZERO else "0 or more"
    assert refusal(**{name: value}) == (
        f"lock_{name}={value!r} (task shop.pay): must be a finite number of seconds, {bound} "
        "(or a timedelta)"
    )


@pytest.mark.parametrize("name", ABOVE_ZERO)
def test_zero_is_refused_where_it_makes_no_sense(name):
    """A lock that lives for no time is a mistake."""
    assert f"lock_{name}=0 (task shop.pay): must be" in refusal(**{name: 0})


@pytest.mark.parametrize("name", ABOVE_ZERO + FROM_ZERO)
def test_every_duration_may_be_a_timedelta(name):
    """A timedelta becomes float seconds."""
    value = getattr(LockOptions(**{name: timedelta(milliseconds=1500)}), name)
    assert value == 1.5
    assert isinstance(value, float)


@pytest.mark.parametrize("name", FROM_ZERO)
def test_zero_is_allowed_where_it_means_not_at_all(name):
    """No wait and no least hold are the defaults."""
    assert getattr(LockOptions(**{name: 0}), name) == 0.0


@pytest.mark.parametrize(
    "given, kept",
    [(5, (5.0, 5.0)), (1.2, (2.0, 2.0)), ((1, 60), (1.0, 60.0)), ([2.5, 9.1], (3.0, 10.0))],
)
def test_the_delay_of_a_rescheduled_task_is_whole_seconds(given, kept):
    """Fractions are rounded up, since brokers take whole seconds of at least one."""
    assert LockOptions(reschedule_delay=given).reschedule_delay == kept


@pytest.mark.parametrize(
    "value, problem",
    [
        (0.5, "must be a finite number of seconds, 1 or more"),
        ((1, 2, 3), "must be seconds, or a pair (first, longest)"),
        ((9, 2), "the first delay must not be above the longest"),
        (("a", 2), "must be a finite number of seconds, 1 or more"),
    ],
)
def test_a_wrong_delay_is_refused(value, problem):
    """Too short, too many, the wrong way round, no number."""
    message = refusal(reschedule_delay=value)
    assert message.startswith("lock_reschedule_delay=")
    assert f"(task shop.pay): {problem}" in message


def test_running_without_a_lock_is_refused_in_correctness_mode():
    """The message names both options and where each is written."""
    with pytest.raises(ImproperlyConfigured) as caught:
        LockOptions.layered(at(TASK, on_unavailable="run"), at(QUEUE, mode="correctness"))
    assert str(caught.value) == (
        "lock_on_unavailable='run' (task shop.pay): must be 'reschedule' or 'raise' beside "
        "redlock_queues['billing']['mode']='correctness' (queue 'billing'), where a body never "
        "runs without its lock"
    )


def test_a_renewal_needs_time_for_two_tries():
    """More than half of the ttl is refused, and the bound is named."""
    assert refusal(renew_interval=15.5) == (
        "lock_renew_interval=15.5 (task shop.pay): must be 15 or less beside ttl=30.0 (the "
        "default), to leave time for two tries before the ttl is over"
    )
    assert LockOptions(renew_interval=15).renew_interval == 15.0


def test_the_least_hold_must_not_be_above_the_longest():
    """The two bounds of the same time fit together."""
    assert refusal(min_hold=9, max_hold=8) == (
        "lock_min_hold=9.0 (task shop.pay): must be 8 or less beside lock_max_hold=8.0 "
        "(task shop.pay)"
    )


@pytest.mark.parametrize("make", [LockOptions, lambda **kw: LockOptions.layered(at(TASK, **kw))])
def test_key_and_args_side_by_side_are_refused(make):
    """At one level, only one of the two can be meant."""
    with pytest.raises(ImproperlyConfigured, match="already says which arguments matter"):
        make(key="a", args=["b"])


@pytest.mark.parametrize("value", ["", [], [""], 5, ["a", 5]], ids=repr)
def test_a_key_must_be_a_template_or_a_callable(value):
    """Nothing else makes a name, and an empty list makes none."""
    message = refusal(key=value)
    assert message.startswith(f"lock_key={value!r} (task shop.pay): must be a template such as")


@pytest.mark.parametrize(
    "value, problem",
    [
        ("day", "must be a list of argument names, as in ['day']"),
        (5, "must be a list of argument names"),
        ({"day": 1}, "must be a list of argument names"),
        (["day", 5], "every argument name must be a string"),
    ],
)
def test_args_must_be_a_list_of_names(value, problem):
    """A single text is the usual mistake, so the message shows the list."""
    assert refusal(args=value) == f"lock_args={value!r} (task shop.pay): {problem}"


@pytest.mark.parametrize("value", ["", [], (), {"a": 1}, 5, ["redis://u:hunter2@h", 5], ["a", ""]])
def test_a_wrong_coordinator_is_refused_without_its_value(value):
    """It may hold a password, so only its kind is named."""
    message = refusal(coordinator=value)
    assert re.match(r"lock_coordinator \(task shop\.pay\) is (empty|a \w+.*): must be a", message)
    assert "hunter2" not in message


def test_options_are_frozen():
    """What is validated can't be changed afterwards."""
    options = LockOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.ttl = 5


def test_options_made_directly_are_validated_too():
    """There is no way round the checks; the message says where."""
    with pytest.raises(ImproperlyConfigured, match=r"^ttl=-1 \(LockOptions\): must be a finite"):
        LockOptions(ttl=-1)


def test_seconds_names_an_application_setting():
    """Other settings are durations as well, and are refused in the same words."""
    with pytest.raises(ImproperlyConfigured) as caught:
        seconds(0, "redlock_node_timeout", least=0, open_end=True)
    assert str(caught.value) == (
        "redlock_node_timeout=0: must be a finite number of seconds, more than 0 (or a timedelta)"
    )
