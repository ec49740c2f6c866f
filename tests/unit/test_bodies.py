"""What correctness mode asks of a body, wherever the mode comes from; no server, no worker."""

import pytest
from celery import VERSION, Celery

from celery_redlock import (
    FencingToken,
    ImproperlyConfigured,
    LockedTask,
    Locks,
    current_lease,
)
from celery_redlock.bodies import unfenceable


@pytest.fixture
def app(request):
    """An application whose locks are in memory."""
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.redlock_coordinators = {"default": f"memory://{request.node.name}"}
    return app


@pytest.fixture
def eager(app):
    """The same, whose tasks run at once."""
    app.conf.task_always_eager = True
    return app


def without_a_token(app, **options):
    """A task whose body has no parameter for the token."""

    @app.task(shared=False, base=LockedTask, name="shop.pay", **options)
    def pay(account):
        raise AssertionError("must not run")

    return pay


@pytest.mark.parametrize("how", ["publish", "eagerly", "signature", "apply", "direct call"])
def test_the_mode_of_the_application_is_checked_every_time(app, how):
    """Each way to call the task raises at once, also after the error was caught."""
    app.conf.redlock_mode = "correctness"
    app.conf.task_always_eager = how == "eagerly"
    pay = without_a_token(app)
    call = {"signature": pay.s(7).delay, "apply": lambda: pay.apply((7,))}
    call["direct call"] = lambda: pay(7)
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match=r"shop\.pay.*no parameter named"):
            call.get(how, lambda: pay.delay(7))()


def test_the_mode_of_a_pattern_is_checked(app):
    """``redlock_tasks`` may ask for correctness, too."""
    app.conf.redlock_tasks = {"shop.*": {"mode": "correctness"}}
    with pytest.raises(ImproperlyConfigured, match="no parameter named fencing_token"):
        without_a_token(app).delay(7)


def test_a_call_may_ask_for_more_and_never_for_less(eager):
    """``lock={"mode": …}`` can't take correctness away; asking for it is checked."""
    with pytest.raises(ImproperlyConfigured, match="no parameter named fencing_token"):
        without_a_token(eager).apply_async((7,), lock={"mode": "correctness"})

    @eager.task(shared=False, base=LockedTask, lock_mode="correctness")
    def pay(account, *, fencing_token):
        return fencing_token, current_lease().mode

    token, mode = pay.apply_async((7,), lock={"mode": "efficiency"}).get()
    assert isinstance(token, FencingToken)
    assert mode == "correctness"


def test_the_mode_of_the_queue_is_checked_at_every_publish(app):
    """In one queue the task is refused, in the other it is sent."""
    app.conf.redlock_queues = {"billing": {"mode": "correctness"}}
    pay = without_a_token(app)
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match=r"shop\.pay.*no parameter named"):
            pay.apply_async((7,), queue="billing")
    assert pay.apply_async((7,), queue="other").id


@pytest.mark.parametrize(
    "body",
    [
        lambda account, *fencing_token: None,
        lambda account, **fencing_token: None,
        lambda account, **kwargs: None,
    ],
    ids=["*fencing_token", "**fencing_token", "**kwargs"],
)
def test_a_parameter_that_collects_is_none(body):
    """A star would swallow a caller's arguments, and ``**kwargs`` names nothing."""
    pay = type("Pay", (), {"name": "shop.pay", "run": staticmethod(body)})
    assert "fencing_token" in unfenceable(pay)


def test_a_keyword_token_beside_kwargs_is_fine(eager):
    """The token isn't among what ``**rest`` collects."""

    @eager.task(shared=False, base=LockedTask, lock_mode="correctness")
    def pay(account, *, fencing_token, **rest):
        return int(fencing_token), rest

    assert pay.delay(7, cents=5).get() == (1, {"cents": 5})


class Around(LockedTask):
    """Does something around the lock, and leaves the rest to us."""

    def __call__(self, *args, **kwargs):
        return ["around", super().__call__(*args, **kwargs)]


class Past(LockedTask):
    """Runs the body past its lock."""

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


class Behind(Past):
    """Calls super, which doesn't."""

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("where", ["lock_mode", "redlock_mode"])
def test_a_call_of_ones_own_must_come_to_ours(eager, where):
    """With super it runs under its lock; without, anywhere in its bases, it is refused."""
    options = {"lock_mode": "correctness"} if where == "lock_mode" else {}
    if where == "redlock_mode":
        eager.conf.redlock_mode = "correctness"

    def made(base):
        @eager.task(shared=False, base=base, name=f"shop.{base.__name__}", **options)
        def pay(account, *, fencing_token):
            return int(fencing_token)

        return pay

    tasks = {base: made(base) for base in (Around, Past, Behind)}
    for base in (Past, Behind):
        for _ in range(2):
            with pytest.raises(ImproperlyConfigured, match="overrides __call__ and doesn't call"):
                tasks[base].delay(7)
    assert tasks[Around].delay(7).get() == ["around", 1]


def test_efficiency_mode_lets_a_call_of_ones_own_be(eager):
    """The control: where no money is at stake, it is the user's decision."""

    @eager.task(shared=False, base=Past)
    def pay(account):
        return current_lease()

    assert pay.delay(7).get() is None


def test_an_annotation_around_the_call_is_no_override(app):
    """Celery's ``@__call__`` wraps ours and comes to it."""

    def around(call):
        def wrapped(self, *args, **kwargs):
            return ["annotated", call(self, *args, **kwargs)]

        return wrapped

    app.conf.task_annotations = {"shop.pay": {"@__call__": around}}

    @app.task(shared=False, base=LockedTask, name="shop.pay", lock_mode="correctness")
    def pay(account, *, fencing_token):
        return int(fencing_token)

    assert pay(7) == ["annotated", 1]


def test_a_body_with_several_keys_gets_the_token_of_each(eager):
    """In sorted order of the locks, whatever the order of the keys; all or none are taken."""

    @eager.task(
        shared=False,
        base=LockedTask,
        lock_mode="correctness",
        lock_key=["account:{source}", "account:{target}"],
        lock_on_conflict="raise",
    )
    def move(source, target, *, fencing_token):
        lease = current_lease()
        assert lease.fencing_tokens == {t.lock: t for t in fencing_token.tokens}
        return fencing_token.lock, [(t.lock, int(t)) for t in fencing_token.tokens]

    assert move.delay(9, 7).get() == ("account:7", [("account:7", 1), ("account:9", 1)])
    assert move.delay(7, 8).get() == ("account:7", [("account:7", 2), ("account:8", 1)])
    locks = Locks.for_app(eager)
    with locks.lock("account:9"), pytest.raises(Exception, match="account:9"):
        move.delay(7, 9).get()
    assert locks.coordinator("default", "correctness").inspect("account:7") is None


def test_a_body_is_an_ordinary_function_in_a_unit_test(app):
    """``run`` takes the token like any argument, without lock or server."""

    @app.task(shared=False, base=LockedTask, bind=True, lock_mode="correctness")
    def charge(self, account, *, fencing_token):
        return self.name, account, fencing_token

    assert charge.run(7, fencing_token=3) == (charge.name, 7, 3)


if VERSION >= (5, 5):  # what pydantic=True needs
    from pydantic import BaseModel

    class Posting(BaseModel):
        """An argument that pydantic checks."""

        account: int
        cents: int

    def test_a_pydantic_body_gets_the_token_beside_its_model(eager):
        """The model is made of what travelled, and the token is left as it is."""

        @eager.task(shared=False, base=LockedTask, lock_mode="correctness", pydantic=True)
        def pay(posting: Posting, *, fencing_token: FencingToken):
            return type(posting).__name__, posting.cents, type(fencing_token).__name__

        assert pay.delay({"account": 7, "cents": 5}).get() == ("Posting", 5, "FencingToken")
        assert pay.run({"account": 7, "cents": 5}, fencing_token=3) == ("Posting", 5, "int")
