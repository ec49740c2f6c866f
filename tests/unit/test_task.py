"""The task base class without any server: eager mode, direct calls, options, refusals."""

import pickle

import pytest
from celery import Celery, shared_task
from celery.exceptions import Retry

from celery_redlock import (
    FencingToken,
    ImproperlyConfigured,
    LockedTask,
    LockNotAcquired,
    Locks,
    Skipped,
    StaleTokenError,
    current_lease,
    signals,
)


@pytest.fixture
def app(request):
    """An application whose locks are in memory, and whose tasks run eagerly."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.redlock_coordinators = {"default": f"memory://{request.node.name}"}
    app.conf.task_always_eager = True
    return app


@pytest.fixture
def happened(app):
    """The events that the application has seen, in order."""
    seen = []

    def note(sender, event, **_):
        if sender is app:
            seen.append(event)

    every = [getattr(signals, name) for name in signals.__all__]
    for signal in every:
        signal.connect(note)
    yield seen
    for signal in every:
        signal.disconnect(note)


def names(happened):
    """The kinds of the events, in order."""
    return [type(event).__name__ for event in happened]


def test_the_body_runs_under_its_lock(app, happened):
    """Inside the body the lease is current and held; afterwards the lock is free."""

    @app.task(shared=False, base=LockedTask)
    def resize(image, size=128):
        lease = current_lease()
        assert not lease.lost
        return lease.key, resize.lease.key

    key, same = resize.delay(7).get()
    assert key == same
    assert key.startswith("tests.unit.test_task.resize:")
    assert current_lease() is None
    assert Locks.for_app(app).coordinator("default", "efficiency").inspect(key) is None
    assert names(happened) == ["Acquired", "Released"]


def test_a_direct_call_locks_too(app):
    """``task(1)`` takes the lock like a delivered one."""

    @app.task(shared=False, base=LockedTask, lock_key="k:{x}")
    def f(x):
        return current_lease().key

    assert f(1) == "k:1"


def test_the_lock_is_free_after_a_failure(app, happened):
    """A body that raises gives its lock back, and its own error comes out."""

    @app.task(shared=False, base=LockedTask, lock_key="k")
    def f():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        f()
    assert names(happened) == ["Acquired", "Released"]


@pytest.mark.parametrize("how", ["direct", "eager"])
def test_skip_names_the_holder(app, happened, how):
    """A skipped call ends well, with a plain dict that says who holds the lock."""

    @app.task(shared=False, base=LockedTask, lock_key="k")
    def f():
        raise AssertionError("must not run")

    with Locks.for_app(app).lock("k", task="the importer"):
        result = f() if how == "direct" else f.delay().get()
    assert result["skipped"] is True
    assert result["key"] == "k"
    assert result["holder"]["task"] == "the importer"
    assert isinstance(result, dict)
    assert names(happened)[1:] == ["ConflictMet", "SkippedTask", "Released"]


@pytest.mark.parametrize("policy", ["raise", "reschedule", "revoke"])
def test_where_nothing_can_be_published_again_the_conflict_is_raised(app, policy):
    """On a direct call a conflict is an error that carries the holder, unless it is skipped."""

    @app.task(shared=False, base=LockedTask, lock_key="k", lock_on_conflict=policy)
    def f():
        raise AssertionError("must not run")

    with Locks.for_app(app).lock("k", ttl=20), pytest.raises(LockNotAcquired) as caught:
        f()
    assert caught.value.key == "k"
    assert caught.value.holder["pid"] > 0
    assert 0 < caught.value.retry_after <= 20


def test_a_task_that_calls_itself_keeps_its_lock(app):
    """Direct recursion runs under the lease that is held already, and doesn't block itself."""

    @app.task(shared=False, base=LockedTask, lock_key="tree")
    def walk(depth):
        return [current_lease()] + (walk(depth - 1) if depth else [])

    leases = walk(3)
    assert len(leases) == 4
    assert len(set(map(id, leases))) == 1


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("mode", ["efficiency", "correctness"])
def test_the_fencing_token_reaches_the_body(app, bind, mode):
    """The token is filled in, rises with each grant, and no caller needs to know of it."""
    if bind:

        @app.task(
            shared=False, base=LockedTask, bind=True, lock_key="acc:{account}", lock_mode=mode
        )
        def pay(self, account, *, fencing_token):
            assert self.name == pay.name
            return fencing_token, current_lease().fencing_token
    else:

        @app.task(shared=False, base=LockedTask, lock_key="acc:{account}", lock_mode=mode)
        def pay(account, *, fencing_token):
            return fencing_token, current_lease().fencing_token

    first, leased = pay.delay(7).get()
    second, _ = pay(7)
    assert first == leased
    assert second > first
    assert isinstance(second, FencingToken)
    assert second.lock == "acc:7"


def test_the_token_fits_every_kind_of_parameter(app):
    """Keyword-only, positional-only, in front: the body gets it where it asked for it."""

    @app.task(shared=False, base=LockedTask, lock_mode="correctness", lock_key="k")
    def first(fencing_token, a, b=2):
        return fencing_token, a, b

    @app.task(shared=False, base=LockedTask, lock_mode="correctness", lock_key="k")
    def only(a, fencing_token, /, b=2):
        return fencing_token, a, b

    assert first.delay(1).get()[1:] == (1, 2)
    assert first.delay(a=1, b=3).get()[1:] == (1, 3)
    assert only.delay(1, b=5).get()[1:] == (1, 5)
    assert only.delay(1).get()[0] > first.delay(1).get()[0] - 2


def test_a_caller_cannot_supply_the_token(app):
    """At publish it is an unknown argument; on a direct call the lock's own token is used."""

    @app.task(shared=False, base=LockedTask, lock_mode="correctness", lock_key="k")
    def pay(account, *, fencing_token):
        return fencing_token

    with pytest.raises(TypeError, match="fencing_token"):
        pay.delay(7, fencing_token=99)
    assert pay(7, fencing_token=10**9) < 10
    assert pay.run(7, fencing_token=3) == 3


BAD = [
    ({"lock_tll": 3}, r"lock_tll.*did you mean lock_ttl"),
    ({"lock_ttl": -1}, r"lock_ttl.*-1.*more than 0"),
    ({"lock_ttl": "long"}, r"lock_ttl.*'long'.*seconds"),
    ({"lock_on_conflict": "explode"}, r"lock_on_conflict.*'explode'.*'skip'"),
    ({"lock_key": "account:{acount}"}, r"acount.*account"),
    ({"lock_args": ["acount"]}, r"acount.*account"),
    ({"lock_mode": "correctness"}, r"fencing_token"),
    ({"lock_key": "k", "lock_args": ["account"]}, r"lock_args.*lock_key"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_are_refused_at_finalize_and_at_every_use(app, options, message):
    """One clear message when the app is finalized, and again at each publish and call."""

    @app.task(shared=False, base=LockedTask, **options)
    def pay(account):
        raise AssertionError("must not run")

    @app.task(shared=False, base=LockedTask)
    def good(account):
        return account

    with pytest.raises(ImproperlyConfigured, match=message):
        app.finalize()
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match=message):
            pay.delay(1)
        with pytest.raises(ImproperlyConfigured, match=message):
            pay(1)
    assert good.delay(5).get() == 5


def test_an_unknown_option_of_a_call_is_refused_at_publish(app):
    """``lock={...}`` of one call is checked where it is written."""

    @app.task(shared=False, base=LockedTask)
    def f(x):
        return x

    with pytest.raises(ImproperlyConfigured, match="tll.*did you mean"):
        f.apply_async((1,), lock={"tll": 3})
    with pytest.raises(ImproperlyConfigured, match="must be a dict"):
        f.apply_async((1,), lock=3)


def test_the_call_decides_over_the_task(app):
    """The nearest level wins: a key given with one call is this call's key."""

    @app.task(shared=False, base=LockedTask, lock_key="task:{x}")
    def f(x):
        return current_lease().key

    assert f.apply_async((1,), lock={"key": "call:{x}"}).get() == "call:1"
    assert f.apply_async((1,), lock={"key": lambda x: f"made:{{{x}}}"}).get() == "made:{1}"
    assert f.apply_async((1,), lock={"key": ["b:{x}", "a:{x}"]}).get() == "a:1, b:1"
    assert f.delay(1).get() == "task:1"


def test_an_option_set_at_run_time_takes_effect(app):
    """Assigning ``task.lock_ttl`` changes the next lock."""

    @app.task(shared=False, base=LockedTask)
    def f(x):
        return current_lease().grants[0].ttl

    assert f(1) == 30
    f.lock_ttl = 5
    assert f(1) == 5


def test_a_setting_changed_at_run_time_takes_effect(app):
    """Assigning ``app.conf.redlock_ttl`` changes the next lock, too."""

    @app.task(shared=False, base=LockedTask)
    def f(x):
        return current_lease().grants[0].ttl

    assert f(1) == 30
    app.conf.redlock_ttl = 7
    assert f(1) == 7


def test_annotations_and_inheritance_carry_options(app):
    """An option can come from a base class of one's own, and from task_annotations."""

    class Slow(LockedTask):
        lock_ttl = 90

        def lock_the_door(self):
            """A method of the user's own is no option."""

    app.conf.task_annotations = {"shop.annotated": {"lock_ttl": 12}}

    @app.task(shared=False, base=Slow)
    def inherited():
        return current_lease().grants[0].ttl

    @app.task(shared=False, base=LockedTask, name="shop.annotated")
    def annotated():
        return current_lease().grants[0].ttl

    assert inherited() == 90
    assert annotated() == 12


def test_a_missing_coordinator_is_an_error_and_never_localhost():
    """Without redlock_coordinators a locked task says what to write where."""
    app = Celery("bare", broker="memory://", set_as_current=False)

    @app.task(shared=False, base=LockedTask)
    def f():
        raise AssertionError("must not run")

    with pytest.raises(ImproperlyConfigured, match="redlock_coordinators is missing"):
        f()


def test_class_based_and_shared_tasks_work(app):
    """A task class and a shared task take their lock like a decorated function."""

    class Charge(LockedTask):
        name = "shop.charge"
        lock_mode = "correctness"
        lock_key = "acc:{account}"

        def run(self, account, *, fencing_token):
            return account, self.lease.fencing_token == fencing_token

    charge = app.register_task(Charge())
    assert charge.delay(3).get() == (3, True)

    @shared_task(base=LockedTask, name="shop.shared", lock_key="s")
    def shared():
        return current_lease().key

    assert app.tasks["shop.shared"].delay().get() == "s"


def test_a_class_that_goes_around_the_lock_is_refused(app):
    """In correctness mode a ``__call__`` of one's own could run the body without its lock."""

    class Rogue(LockedTask):
        name = "shop.rogue"
        lock_mode = "correctness"

        def __call__(self, *args, **kwargs):
            return self.run(*args, **kwargs)

        def run(self, fencing_token):
            raise AssertionError("must not run")

    rogue = app.register_task(Rogue())
    with pytest.raises(ImproperlyConfigured, match="overrides __call__"):
        rogue.delay()


def test_autoretry_does_not_retry_a_conflict(app):
    """Not getting the lock is the lock's business: autoretry_for sees only the body's errors."""

    @app.task(
        shared=False,
        base=LockedTask,
        lock_key="k",
        lock_on_conflict="raise",
        autoretry_for=(Exception,),
        max_retries=3,
        retry_backoff=True,
    )
    def f():
        raise ValueError("the body's own")

    with Locks.for_app(app).lock("k"), pytest.raises(LockNotAcquired):
        f()
    with pytest.raises((Retry, ValueError)):
        f()


def test_a_stale_token_is_never_retried(app, happened):
    """Not even ``autoretry_for=(Exception,)`` retries a stale token; it is told as an event."""
    runs = []

    @app.task(
        shared=False, base=LockedTask, lock_key="k", autoretry_for=(Exception,), max_retries=3
    )
    def pay():
        runs.append(1)
        raise StaleTokenError("k", 1, 2)

    with pytest.raises(StaleTokenError):
        pay.delay().get()
    with pytest.raises(StaleTokenError):
        pay()
    assert len(runs) == 2
    assert names(happened) == ["Acquired", "StaleToken", "Released"] * 2


def test_other_errors_are_retried_as_ever(app):
    """The control: with the same task options another error is retried."""
    runs = []

    @app.task(
        shared=False, base=LockedTask, lock_key="k", autoretry_for=(Exception,), max_retries=2
    )
    def pay():
        runs.append(1)
        raise ValueError("the body's own")

    assert pay.apply(throw=False).state == "FAILURE"
    assert len(runs) == 3


def test_built_in_tasks_are_left_alone():
    """With task_cls=LockedTask Celery's own tasks run without a lock."""
    app = Celery("all", broker="memory://", task_cls=LockedTask, set_as_current=False)
    app.conf.redlock_coordinators = {"default": "memory://all"}
    app.finalize()
    assert isinstance(app.tasks["celery.accumulate"], LockedTask)
    assert app.tasks["celery.accumulate"](1, 2) == (1, 2)


def test_a_skipped_result_is_a_plain_dict():
    """Any result backend shows it as it is, and pickle brings it back."""
    skipped = Skipped("k", {"task": "t"})
    assert skipped == {"skipped": True, "key": "k", "holder": {"task": "t"}}
    assert pickle.loads(pickle.dumps(skipped)) == skipped


def test_a_skip_on_a_lost_store_is_refused(app):
    """No option drops a task because the lock store is down."""

    @app.task(shared=False, base=LockedTask, lock_on_unavailable="skip")
    def f():
        raise AssertionError("must not run")

    with pytest.raises(ImproperlyConfigured, match="on_unavailable.*'reschedule'"):
        f()
