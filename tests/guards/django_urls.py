"""A site with one account behind a fence."""

from django.db import connection
from django.http import HttpResponse
from django.urls import path

from celery_redlock.guards.django import fenced


def deposit(request, cents):
    """Add to the account, in a transaction that the request's token fences."""
    with fenced(request.fencing_token, lock="account:7"), connection.cursor() as cursor:
        cursor.execute("update guarded_account set balance = balance + %s where id = 7", [cents])
    return HttpResponse("done")


def fail(request):
    """Raise what has nothing to do with a fence."""
    raise ZeroDivisionError


def look(request):
    """Say whose token came, if any."""
    return HttpResponse(repr(request.fencing_token))


urlpatterns = [path("deposit/<int:cents>", deposit), path("look", look), path("fail", fail)]
