"""The take-over of a query's checkpoint location: fenced, copied, and looked at again. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_checkpoint_provider.location.fence import delete_location, stays_fenced
from airflow_checkpoint_provider.location.files import Location, Position

T = TypeVar("T")


def take_over(
    old: Location, own: Location, fenced: Callable[[], tuple[int, float]], copy: Callable[[Position], T]
) -> T:
    """Copy what a query needs from ``old``, where no later batch may begin, to ``own``. Return what ``copy`` returned.

    ``fenced`` fences the location, and returns the newest batch that has begun there, and the time of the fence. ``copy`` copies the files
    for a position, or raises an error if the query must not go on. In S3 a batch may still appear some seconds later. Then the copy is
    deleted, and both steps are repeated.
    """
    while True:
        begun, since = fenced()
        copied = copy(Position(begun, old.committed(begun)))
        if stays_fenced(old, begun, since):
            return copied
        delete_location(own)
