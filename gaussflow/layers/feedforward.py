"""Feed-forward blocks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from gaussflow.arrays import as_real_array, shape_in_words
from gaussflow.errors import InvalidInput
from gaussflow.layers.field import AffineField, MeanFieldLayer, State


class AffineFeedForward(MeanFieldLayer):
    """The affine feed-forward block x ↦ Ax + b.

    Parameters
    ----------
    A:
        shape (d, d), or a scalar c meaning c times the identity.
    b:
        shape (d,); None means no bias.
    """

    A: Float[Array, "*_"]
    b: Float[Array, "*batch d"] | None

    def __init__(self, A: Any = 0.0, b: Any = None):
        self.A = as_matrix(A, "A")
        self.b = as_bias(b)
        if self.b is not None and self.A.ndim == 2 and self.A.shape[0] != self.b.shape[0]:
            raise InvalidInput(
                "b",
                got=f"{shape_in_words(self.b.shape)} beside A of {shape_in_words(self.A.shape)}",
                wanted="the same dimension d in A and b",
            )

    @property
    def dim(self) -> int | None:
        if self.A.ndim >= 2:
            return self.A.shape[-1]
        return None if self.b is None else self.b.shape[-1]

    def affine_field(self, gaussian: State) -> AffineField:
        offset = jnp.zeros_like(gaussian.mean) if self.b is None else self.b
        return AffineField(((self.A,),), offset)

    def velocity(self, x: Float[Array, "n d"], tokens: Float[Array, "m d"]) -> Float[Array, "n d"]:
        linear = self.A * x if self.A.ndim == 0 else x @ self.A.T
        return linear if self.b is None else linear + self.b


def as_matrix(value: Any, argument: str) -> Array:
    """A scalar or a (d, d) matrix as an array; anything else is refused."""
    array = as_real_array(value, argument)
    if array.ndim not in (0, 2) or (array.ndim == 2 and not array.shape[0] == array.shape[1] > 0):
        raise InvalidInput(
            argument,
            got=shape_in_words(array.shape),
            wanted="a scalar or a (d, d) matrix",
            fix="write numpy.diag(...) for a diagonal matrix" if array.ndim == 1 else "",
        )
    return array


def as_bias(value: Any, argument: str = "b") -> Array | None:
    """None, or a vector (d,) as an array; anything else is refused."""
    if value is None:
        return None
    array = as_real_array(value, argument)
    if array.ndim != 1 or array.shape[0] == 0:
        raise InvalidInput(
            argument,
            got=shape_in_words(array.shape),
            wanted="a vector of shape (d,)",
            fix="write numpy.full(d, c) for the same bias in every coordinate" if array.ndim == 0 else "",
        )
    return array
