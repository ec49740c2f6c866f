"""Signals are for the main thread: a terminated task must not run on because a helper got it."""

import os
import signal
import threading

from celery_redlock.native import native_thread


def test_a_native_thread_takes_no_signal():
    """Every signal that can be blocked is blocked in it, and in the starter nothing changes."""
    masks = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    thread = native_thread(
        lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "signals"
    )
    assert thread.join(10)
    assert {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT} <= masks[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_signal_of_the_process_reaches_the_main_thread():
    """While the main thread waits in a system call, a signal sent to the process interrupts it."""

    class Interrupted(Exception):
        pass

    def handler(number, frame):
        assert threading.current_thread() is threading.main_thread()
        raise Interrupted

    old = signal.signal(signal.SIGUSR1, handler)
    reading, writing = os.pipe()
    thread = native_thread(lambda: os.kill(os.getpid(), signal.SIGUSR1), "sender")
    try:
        os.read(reading, 1)
    except Interrupted:
        interrupted = True
    finally:
        signal.signal(signal.SIGUSR1, old)
        os.close(reading)
        os.close(writing)
    assert interrupted
    assert thread.join(10)
