"""Progress of long work."""

from collections.abc import Callable

Progress = Callable[[int, int], None]  # called with what is done and the total


def counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Return a function that adds to what is done, and reports it.

    Example:
        >>> count = counter(print, 5)
        >>> count(2)
        2 5
        >>> count(3)
        5 5
    """
    done = 0

    def count(amount: int) -> None:
        nonlocal done
        done += amount
        if progress is not None:
            progress(min(done, total), total)

    return count


def part_of(progress: Progress, number: int, total: int) -> Progress:
    """Return the progress of one of several jobs, counted from 0, as a fraction of all."""
    return lambda done, whole: progress(number * whole + done, total * whole)
