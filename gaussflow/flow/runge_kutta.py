"""An explicit Runge–Kutta step with its stages unrolled, and the step-size rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gaussflow.flow.tableau import Tableau

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0


class Step(NamedTuple):
    """One trial step: the new state, the embedded error, the slopes, and the state at the last stage but one."""

    state: Array
    error: Array
    slopes: tuple[Array, ...]
    penultimate: Array


def trial_step(
    rate: Callable[[Any, Array], Array],
    tableau: Tableau,
    t: Any,
    h: Any,
    state: Array,
    first: Array,
    *,
    rolled: bool = False,
) -> Step:
    """Advance ``state`` by h with ``rate(t, state)``; ``first`` is the slope at the start.

    The stages are written out one by one, which runs fastest; ``rolled`` loops over them instead, which compiles in a
    fraction of the time (reverse mode above all).
    """
    if rolled:
        return _rolled_step(rate, tableau, t, h, state, first)
    slopes = [first]
    argument = penultimate = state
    for row, node in zip(tableau.rows, tableau.nodes[1:], strict=True):
        penultimate = argument
        argument = state + h * _combine(row, slopes)
        slopes.append(rate(t + node * h, argument))
    # With first-same-as-last the last argument is the new state itself.
    new = argument if tableau.first_same_as_last else state + h * _combine(tableau.weights, slopes)
    return Step(new, h * _combine(tableau.error_weights, slopes), tuple(slopes), penultimate)


def _rolled_step(rate, tableau: Tableau, t: Any, h: Any, state: Array, first: Array) -> Step:
    stages = tableau.stages
    square = np.zeros((stages, stages))
    for i, row in enumerate(tableau.rows):
        square[i + 1, : len(row)] = row
    rows, nodes = (jnp.asarray(x, state.dtype) for x in (square, tableau.nodes))
    slopes = jnp.zeros((stages, *state.shape), state.dtype).at[0].set(first)

    def stage(carry, i):
        slopes, _ = carry
        argument = state + h * jnp.tensordot(rows[i], slopes, axes=1)
        return (slopes.at[i].set(rate(t + nodes[i] * h, argument)), argument), argument

    (slopes, last), arguments = jax.lax.scan(stage, (slopes, state), jnp.arange(1, stages))
    combine = lambda c: jnp.tensordot(jnp.asarray(c, state.dtype), slopes, axes=1)
    new = last if tableau.first_same_as_last else state + h * combine(tableau.weights)
    penultimate = arguments[-2] if stages > 2 else state
    return Step(new, h * combine(tableau.error_weights), tuple(slopes), penultimate)


def _combine(coefficients: tuple[float, ...], slopes: list[Array]) -> Array:
    used = [(c, k) for c, k in zip(coefficients, slopes, strict=False) if c != 0.0]
    total = used[0][0] * used[0][1]
    for c, k in used[1:]:
        total = total + c * k
    return total


def step_factor(error: Array, order: int, *, coarse: bool = False) -> Array:
    """By how much to change the step, from the scaled error (1 is just acceptable); NaN shrinks the step.

    ``coarse`` rounds down to a quarter of an octave. A reverse pass computes pieces of the run again, and rounding
    differs there: with a step that answers to the last digit of an error estimate it would differentiate other steps
    than those that were taken.
    """
    safe = jnp.where(error > 0, error, 1.0)
    factor = jnp.clip(SAFETY * safe ** (-1.0 / order), SHRINK, GROW)
    if coarse:
        factor = 2 ** (jnp.floor(4 * jnp.log2(factor)) / 4)
    factor = jnp.where(error > 0, factor, GROW)
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(error), factor, SHRINK))


def scaled_error(error: Array, weights: Array) -> Array:
    """Root mean square of error / weight; entries without weight must have no error and do not count against it."""
    ratio = jnp.where(weights > 0, error / jnp.where(weights > 0, weights, 1.0), jnp.where(error == 0, 0.0, jnp.inf))
    return jax.lax.stop_gradient(jnp.sqrt(jnp.mean(ratio**2)) if error.size else jnp.zeros(()))


def first_step_size(state_size: Array, slope_size: Array, rtol: Array, order: int, length: Array) -> Array:
    """A first step from the rate of change (both sizes in units of the error weights)."""
    rate = slope_size / jnp.where(state_size > 0, state_size, 1.0)
    natural = rtol ** (1.0 / order) / jnp.where(rate > 0, rate, 1.0)
    usable = (rate > 0) & jnp.isfinite(natural) & (state_size > 0)
    return jax.lax.stop_gradient(jnp.minimum(length, jnp.where(usable, natural, 0.01 * length)))
