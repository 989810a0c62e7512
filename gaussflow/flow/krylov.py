"""A small Krylov solver for preconditioned systems close to the identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class KrylovSolution(NamedTuple):
    """x, the norm of the residual it leaves, and how often the operator was applied."""

    solution: Float[Array, " n"]
    residual: Float[Array, ""]
    iterations: Array


class _State(NamedTuple):
    solution: Array
    residual: Array
    size: Array
    direction: Array  # what the operator is applied to next
    directions: Array
    images: Array
    column: Array  # how many of them there are
    iterations: Array


def minimal_residual(
    operator: Callable[[Array], Array],
    right: Float[Array, " n"],
    tolerance: Float[Array, ""],
    *,
    basis: int,
    most_iterations: int,
) -> KrylovSolution:
    """Solve operator(x) = right to an absolute residual; the minimal-residual method restarts every ``basis`` steps.

    GMRES in the form of generalised conjugate residuals (Eisenstat, Elman and Schultz, 1983): directions are kept with
    orthonormal images, so the residual and the solution are at hand after every step without a Hessenberg matrix. Where
    a step hardly shortens the residual the next direction is the last image instead of the residual, the Krylov vector
    that GMRES would take, so that there is no breakdown before a singular operator.
    """
    n = right.shape[0]

    def body(s: _State) -> _State:
        image, direction = operator(s.direction), s.direction
        before = jnp.sqrt(jnp.sum(image**2))
        for _ in range(2):  # once is not enough for orthogonality to working precision
            overlap = s.images @ image
            image = image - overlap @ s.images
            direction = direction - overlap @ s.directions
        length = jnp.sqrt(jnp.sum(image**2))
        # An image inside the span of the earlier ones: nothing more can be gained.
        exhausted = ~(length > 1e-14 * before)
        scale = jnp.where(exhausted, 0.0, 1.0 / jnp.where(exhausted, 1.0, length))
        image, direction = scale * image, scale * direction
        part = image @ s.residual
        residual = s.residual - part * image
        size = jnp.sqrt(jnp.sum(residual**2))
        images, directions = s.images.at[s.column].set(image), s.directions.at[s.column].set(direction)
        column = s.column + 1
        if most_iterations > basis:
            full = column == basis
            images, directions = jnp.where(full, 0.0, images), jnp.where(full, 0.0, directions)
            column = jnp.where(full, 0, column)
        return _State(
            s.solution + part * direction,
            residual,
            size,
            jnp.where(size < 0.98 * s.size, residual, image),
            directions,
            images,
            column,
            jnp.where(exhausted, most_iterations, s.iterations + 1),
        )

    zeros, zero = jnp.zeros((basis, n), right.dtype), jnp.zeros((), int)
    size = jnp.sqrt(jnp.sum(right**2))
    start = _State(jnp.zeros_like(right), right, size, right, zeros, zeros, zero, zero)
    end = jax.lax.while_loop(lambda s: (s.size > tolerance) & (s.iterations < most_iterations), body, start)
    return KrylovSolution(end.solution, end.size, end.iterations)
