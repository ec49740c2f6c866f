"""What our values need to travel as results like plain ones, and what results need of ours."""

from __future__ import annotations

from typing import Any

from celery.result import ResultBase

from celery_redlock.fencing import FencingToken
from celery_redlock.skipped import Skipped

__all__ = ["prepare_results"]


def prepare_results(conf: Any) -> None:
    """Let every kind of result be asked for ``duplicate``, and YAML carry our values.

    Args:
        conf: the application's configuration.
    """
    if not hasattr(ResultBase, "duplicate"):
        ResultBase.duplicate = False  # a folded call's own result says True
    if "yaml" in {conf.task_serializer, conf.result_serializer}:
        _teach_yaml()


def _teach_yaml() -> None:
    import yaml  # Celery's extra brings it to those who chose it

    safe = yaml.SafeDumper
    safe.add_multi_representer(Skipped, lambda dumper, value: dumper.represent_dict(dict(value)))
    safe.add_multi_representer(FencingToken, lambda dumper, value: dumper.represent_int(int(value)))
