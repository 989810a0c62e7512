"""When to save: checking requested times, and choosing them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gaussflow.arrays import as_host_array, as_number, is_concrete, shape_in_words
from gaussflow.errors import InvalidInput
from gaussflow.gaussian import Gaussian
from gaussflow.layers.schedule import Constant, Schedule

MOST_GIB = 64


def check_interval(t0: Any, t1: Any, schedule: Schedule) -> tuple[Any, Any]:
    """t0 and t1 as scalars, inside the schedule."""
    t0, t1 = as_number(t0, "t0"), as_number(t1, "t1")
    if not isinstance(schedule, Constant) and is_concrete(t0, t1, schedule.edges):
        first, last = float(schedule.edges[0]), float(schedule.edges[-1])
        for name, t in (("t0", float(t0)), ("t1", float(t1))):
            if not first <= t <= last:
                raise InvalidInput(
                    name, got=f"{t:g}", wanted=f"a time inside the schedule, which runs from {first:g} to {last:g}"
                )
    return t0, t1


def check_save_times(ts: Any, t0: Any, t1: Any) -> Any:
    """Requested save times: in the direction of integration, between t0 and t1."""
    times = as_host_array(ts, "ts")
    if times.ndim != 1 or times.shape[0] == 0:
        raise InvalidInput("ts", got=shape_in_words(times.shape), wanted="a non-empty vector of save times")
    if is_concrete(times, t0, t1):
        values, start, end = np.asarray(times), float(t0), float(t1)
        direction = 1.0 if end >= start else -1.0
        if np.any(direction * np.diff(values) < 0):
            order = "increasing" if direction > 0 else "decreasing"
            raise InvalidInput("ts", got="unsorted save times", wanted=f"{order} times", fix="sort them")
        outside = (direction * (values - start) < 0) | (direction * (values - end) > 0)
        if outside.any():
            raise InvalidInput(
                "ts",
                got=f"{int(outside.sum())} times outside the run, first {values[outside][0]:g}",
                wanted=f"times from t0 = {start:g} to t1 = {end:g}",
                fix="move t1, or drop them",
            )
    return times


def check_points(points: Any) -> int:
    if isinstance(points, bool) or not isinstance(points, int | np.integer) or points < 1:
        raise InvalidInput("points", got=repr(points), wanted="a positive integer")
    return int(points)


def check_memory(points: int, gaussian: Gaussian) -> None:
    """Refuse at once what no machine could hold, instead of starting it."""
    size = points * gaussian.dim * (gaussian.rank + 1) * 8 / 2**30
    if size > MOST_GIB:
        raise InvalidInput(
            "points",
            got=f"{points} states of dimension {gaussian.dim} and rank {gaussian.rank}, {size:.3g} GiB",
            wanted=f"at most {MOST_GIB} GiB of saved states",
            fix="save fewer points",
        )


def even_times(t0: Any, t1: Any, points: int) -> Float[Array, " n"]:
    """``points`` times from t0 to t1, both included and exact."""
    if points == 1:
        return jnp.reshape(t1, (1,))
    fraction = jnp.linspace(0.0, 1.0, points, dtype=t0.dtype)
    return (t0 + (t1 - t0) * fraction).at[-1].set(t1)


def graded_times(t0: Any, blow_up: Any, points: int) -> Float[Array, " n"]:
    """Times from t0 that crowd towards a blow-up like (t* - t) = (t* - t0)(1 - i/n)², and stay before it."""
    fraction = jnp.arange(points, dtype=t0.dtype) / points
    return blow_up - (blow_up - t0) * (1 - fraction) ** 2
