"""Takes locks in greenlets and in a native thread beside them: ``gevent|eventlet url``.

Run as a process of its own, because patching can't be undone.
"""

import secrets
import sys


def patched(hub):
    """Patch everything; how to run functions in greenlets until all have ended."""
    if hub == "gevent":
        from gevent import monkey

        monkey.patch_all()
        import gevent

        return lambda *calls: gevent.joinall([gevent.spawn(*c) for c in calls], raise_error=True)
    import eventlet

    eventlet.monkey_patch()
    return lambda *calls: [one.wait() for one in [eventlet.spawn(*call) for call in calls]]


def main(hub, url):
    """Take locks, and say that all went well."""
    together = patched(hub)
    from celery_redlock.coordinators import CoordinatorSettings, Grant, Holder, from_urls
    from celery_redlock.native import native_thread

    prefix = f"hub{secrets.token_hex(4)}"
    locks = from_urls(url, CoordinatorSettings(prefix=prefix, node_timeout=5.0))

    def taken(key):
        got = locks.acquire(key, secrets.token_hex(16), 60.0, Holder())
        assert isinstance(got, Grant), got
        return got

    def use(key):
        for _ in range(3):
            grant = taken(key)
            assert locks.extend(grant, 60.0) is not None
            assert locks.release(grant) is True

    keys = [(use, f"k{number}") for number in range(5)]
    together(*keys)
    held, failures = taken("held"), []

    def renew():
        try:
            assert locks.extend(held, 60.0) is not None
            assert locks.extend(held, 60.0) is not None
        except BaseException as exc:
            failures.append(exc)

    # The hub of the main thread stands still until the native thread has done its work.
    assert native_thread(renew, "renewer").join(30.0)
    assert failures == [], failures
    together(*keys)
    assert locks.release(held) is True
    locks.close()
    print("all went well")


if __name__ == "__main__":
    main(*sys.argv[1:])
