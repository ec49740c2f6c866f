"""A process of its own that publishes, with or without the tasks imported.

``python -m tests.celery.publisher '[["task.name", ["a"], {}], …]'`` publishes them all and
prints, as JSON, the id of each result and whether it was a duplicate.  The application's
configuration comes from the environment, as a worker's does.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from celery_redlock import Locks
from tests.celery.app import CONFIG, make_app


def publish(calls, threads=1, config=None, run=None):
    """Publish calls from a process of its own; what it printed, once it has ended.

    Args:
        calls: of each, the task's name, its arguments and its keyword arguments.
        threads: how many threads publish.
        config: the application's configuration.
        run: starts the process; ``subprocess.run`` or ``subprocess.Popen``.
    """
    command = [sys.executable, "-m", "tests.celery.publisher", json.dumps(calls), str(threads)]
    environment = {**os.environ, CONFIG: json.dumps(config)}
    return run(command, env=environment, stdout=-1, text=True)


def main(calls, threads):
    """Publish the calls from so many threads."""
    app = make_app(json.loads(os.environ[CONFIG]))
    Locks.for_app(app)

    def send(call):
        name, args, kwargs = call
        result = app.send_task(name, args, kwargs)
        return [result.id, result.duplicate]

    with ThreadPoolExecutor(threads) as pool:
        print(json.dumps(list(pool.map(send, calls))))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
