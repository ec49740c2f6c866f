"""Tasks that don't use the base class, locked by configuration: without a server."""

import pytest
from celery import Celery, Task, shared_task

from celery_redlock import ImproperlyConfigured, LockedTask, Locks, current_lease, install


@pytest.fixture
def make_app(request):
    """Makes applications whose locks are in memory, and whose tasks run eagerly."""

    def make(name="shop", **conf):
        app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.redlock_coordinators = {"default": f"memory://{request.node.name}"}
        app.conf.task_always_eager = True
        app.conf.update(conf)
        return app

    return make


def lock_of_body():
    """What a body sees of its lock."""
    lease = current_lease()
    return (lease.key, lease.grants[0].ttl) if lease else None


@pytest.mark.parametrize("when", ["before", "after", "finalized"])
def test_install_locks_the_tasks_it_names(make_app, when):
    """Whether it comes before or after the tasks; the others are left alone."""
    app = make_app()
    if when == "before":
        install(app, ["reports.*", "exact.name"])

    @app.task(shared=False, name="reports.daily")
    def daily(day):
        return lock_of_body()

    @app.task(shared=False, name="exact.name", bind=True)
    def exact(self):
        return lock_of_body()

    @app.task(shared=False, name="other.one")
    def other():
        return lock_of_body()

    if when == "finalized":
        app.finalize()
    if when != "before":
        install(app, tasks=["reports.*", "exact.name"])
    assert daily(1)[0].startswith("reports.daily:")
    assert daily.delay(1).get()[0].startswith("reports.daily:")
    assert exact()[0].startswith("exact.name:")
    assert other() is None


def test_redlock_tasks_names_tasks_and_their_options(make_app):
    """A pattern in the configuration does the same as ``install``, with options of its own."""
    app = make_app(
        redlock_tasks={
            "reports.special": {"ttl": 7},
            "reports.*": {"ttl": 9, "key": "report:{day}"},
        }
    )
    install(app)

    @app.task(shared=False, name="reports.daily")
    def daily(day):
        return lock_of_body()

    @app.task(shared=False, name="reports.special")
    def special(day):
        return lock_of_body()

    assert daily(3) == ("report:3", 9)
    assert special(3)[1] == 7


def test_redlock_tasks_works_beside_tasks_of_our_own(make_app):
    """One task with the base class is enough for the application to be looked at."""
    app = make_app(redlock_tasks={"reports.*": {"ttl": 9}})

    @app.task(shared=False, base=LockedTask, name="own")
    def own():
        return lock_of_body()

    @app.task(shared=False, name="reports.daily")
    def daily():
        return lock_of_body()

    app.finalize()
    assert own()[1] == 30
    assert daily()[1] == 9


def test_our_own_tasks_can_be_given_options_by_pattern(make_app):
    """What the task itself says is nearer."""
    app = make_app(redlock_tasks={"own.*": {"ttl": 9, "wait": 1}}, redlock_ttl=5)

    @app.task(shared=False, base=LockedTask, name="own.a", lock_ttl=7)
    def own():
        return lock_of_body()

    assert own()[1] == 7
    options = Locks.for_app(app).plan(own, None, None).options
    assert (options.ttl, options.wait) == (7, 1)


def test_celerys_own_tasks_are_left_alone(make_app):
    """No pattern reaches them."""
    app = make_app(redlock_tasks={"*": {}})
    install(app, ["*"])
    app.finalize()
    assert app.tasks["celery.accumulate"](1, 2) == (1, 2)
    assert "_lock_error" not in vars(app.tasks["celery.chord"].__class__)
    with pytest.raises(ImproperlyConfigured, match="Celery's own"):
        install(app, ["celery.chord"])


def test_install_can_be_repeated(make_app):
    """Twice is the same as once, with the same lock taken once."""
    app = make_app()
    runs = []
    for _ in range(3):
        install(app, ["t"])

    @app.task(shared=False, name="t")
    def t():
        runs.append(current_lease())

    install(app, ["t"])
    app.finalize()
    install(app, ["t"])
    t()
    t.delay()
    assert len(runs) == 2
    assert all(runs)


def test_two_applications_in_one_process(make_app):
    """A shared task is locked in the application that says so, and only there."""
    one, two = make_app("one"), make_app("two")

    @shared_task(name="both.shared")
    def both():
        return lock_of_body()

    install(one, ["both.*"])
    assert one.tasks["both.shared"]() is not None
    assert two.tasks["both.shared"]() is None


def test_a_class_that_inherits_from_a_locked_one_is_locked_by_its_own_name(make_app):
    """A subclass with another name is left alone, and locked once where it is named itself."""
    app = make_app()
    install(app, ["base", "named"])

    class Base(Task):
        name = "base"

        def run(self):
            return lock_of_body()

    class Other(Base):
        name = "other"

    class Named(Base):
        name = "named"

    app.register_task(Base())
    app.register_task(Other())
    app.register_task(Named())
    assert app.tasks["base"]()[0].startswith("base:")
    assert app.tasks["other"]() is None
    assert app.tasks["named"]()[0].startswith("named:")


def test_a_call_of_ones_own_is_kept(make_app):
    """What a task's class does in ``__call__`` happens under the lock."""
    app = make_app()
    seen = []

    class Careful(Task):
        name = "careful"

        def __call__(self, *args, **kwargs):
            seen.append(lock_of_body())
            return super().__call__(*args, **kwargs)

        def run(self):
            return lock_of_body()

    install(app, ["careful"])
    task = app.register_task(Careful())
    assert task() == seen[0] is not None


def test_correctness_mode_fills_the_token_in(make_app):
    """A task of another package that has the parameter gets its token."""
    app = make_app(redlock_tasks={"pay": {"mode": "correctness", "key": "acc:{account}"}})
    install(app)

    @app.task(shared=False, name="pay")
    def pay(account, *, fencing_token):
        return fencing_token

    first = pay.delay(7).get()
    assert pay(7) > first
    assert first.lock == "acc:7"


def test_correctness_mode_without_a_token_parameter_is_refused_at_publish(make_app):
    """The author is told at each publish and call."""
    app = make_app(redlock_tasks={"pay": {"mode": "correctness"}}, task_always_eager=False)
    install(app)

    @app.task(shared=False, name="pay")
    def pay(account):
        raise AssertionError("must not run")

    with pytest.raises(ImproperlyConfigured, match="fencing_token"):
        pay.delay(7)
    with pytest.raises(ImproperlyConfigured, match="fencing_token"):
        app.send_task("pay", (7,))
    with pytest.raises(ImproperlyConfigured, match="fencing_token"):
        pay(7)


@pytest.mark.parametrize("tasks", [3, [3], [""]])
def test_what_is_no_name_is_refused(make_app, tasks):
    """The message says what is expected."""
    with pytest.raises((ImproperlyConfigured, TypeError)):
        install(make_app(), tasks)
