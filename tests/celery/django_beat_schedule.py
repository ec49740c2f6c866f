"""Edits the schedule in the database, as an administrator does: run as a program.

``python -m tests.celery.django_beat_schedule make`` (the tables), ``every NAME SECONDS``,
``once NAME SECONDS`` (from now), ``remove NAME``.
"""

import sys
from datetime import timedelta

import django


def main(what, name="", seconds="0"):
    """Do one thing to the schedule."""
    django.setup()
    from django.core.management import call_command
    from django.utils.timezone import now
    from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask

    if what == "make":
        call_command("migrate", verbosity=0)
    elif what == "remove":
        PeriodicTask.objects.get(name=name).delete()
    elif what == "every":
        every, _ = IntervalSchedule.objects.get_or_create(every=int(seconds), period="seconds")
        PeriodicTask.objects.update_or_create(
            name=name, defaults={"task": f"tests.{name}", "interval": every}
        )
    elif what == "once":
        moment = ClockedSchedule.objects.create(
            clocked_time=now() + timedelta(seconds=float(seconds))
        )
        PeriodicTask.objects.create(name=name, task=f"tests.{name}", clocked=moment, one_off=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
