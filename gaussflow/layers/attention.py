"""Attention kernels: each knows its affine field on a Gaussian and its velocity on finitely many tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gaussflow.arrays import as_real_array, shape_in_words
from gaussflow.errors import InvalidInput
from gaussflow.layers.field import AffineField, MeanFieldLayer, State
from gaussflow.linalg import transpose


class SoftmaxAttention(MeanFieldLayer):
    """Softmax attention with scores ⟨Bx, y⟩ and values V, one or many heads.

    On N(μ, Σ) the softmax average is exactly μ + ΣBx, so M = Σ_h V_h Σ B_h and c = Σ_h V_h μ (theory: affine closure,
    arXiv 2606.07600, Proposition 2.1). For a trained head B = W_Kᵀ W_Q / √d_k and V = W_O W_V.

    Parameters
    ----------
    B, V:
        shape (d, d), or (heads, d, d), or a scalar c meaning c times the identity.
    """

    B: Float[Array, "*_"]
    V: Float[Array, "*_"]

    def __init__(self, B: Any = 0.0, V: Any = 0.0):
        self.B, self.V = as_heads(B, "B"), as_heads(V, "V")
        check_heads(self.B, self.V)

    @property
    def dim(self) -> int | None:
        return next((x.shape[-1] for x in (self.B, self.V) if x.ndim >= 2), None)

    @property
    def growth(self) -> str:
        return "linear"

    @property
    def heads(self) -> int:
        return max((x.shape[0] for x in (self.B, self.V) if x.ndim == 3), default=1)

    def affine_field(self, gaussian: State) -> AffineField:
        mean = gaussian.mean[:, None]
        offset = self.heads_of_shared_value() * (self.V * mean if self.V.ndim == 0 else self.V @ mean)
        if offset.ndim == 3:
            offset = jnp.sum(offset, axis=0)
        return AffineField(((self.V, *gaussian.covariance_chain, self.B),), offset[:, 0])

    def heads_of_shared_value(self) -> int:
        """How many heads share one V: each adds V μ to the offset."""
        return self.heads if self.V.ndim < 3 else 1

    def velocity(self, x: Float[Array, "n d"], tokens: Float[Array, "m d"]) -> Float[Array, "n d"]:
        total = jnp.zeros_like(x)
        for head in range(self.heads):
            B, V = (p[head] if p.ndim == 3 else p for p in (self.B, self.V))
            queries = B * x if B.ndim == 0 else x @ B.T
            averages = jax.nn.softmax(queries @ tokens.T, axis=-1) @ tokens
            total = total + (V * averages if V.ndim == 0 else averages @ V.T)
        return total

    def lyapunov_matrix(self, gaussian: State) -> Float[Array, "d d"]:
        """M + Σ_h v_h Σ B_hᵀ with v_h = tr V_h / d: exact for the derivative when every V_h is a multiple of I."""
        d = gaussian.dim
        mean_value = self.V if self.V.ndim == 0 else jnp.trace(self.V, axis1=-2, axis2=-1) / d
        B = self.B * jnp.eye(d, dtype=self.B.dtype) if self.B.ndim == 0 else self.B
        weighted = mean_value[..., None, None] * transpose(B)
        if weighted.ndim == 3:
            weighted = jnp.sum(weighted, axis=0)
        return self.affine_field(gaussian).matrix + gaussian.covariance @ weighted


def as_heads(value: Any, argument: str) -> Array:
    """A scalar, a (d, d) matrix, or (heads, d, d), as an array; anything else is refused."""
    array = as_real_array(value, argument)
    if array.ndim not in (0, 2, 3) or (array.ndim >= 2 and not array.shape[-1] == array.shape[-2] > 0):
        raise InvalidInput(
            argument,
            got=shape_in_words(array.shape),
            wanted="a scalar, a (d, d) matrix, or (heads, d, d)",
            fix="write numpy.diag(...) for a diagonal matrix" if array.ndim == 1 else "",
        )
    if array.ndim == 3 and array.shape[0] == 0:
        raise InvalidInput(argument, got="no heads", wanted="at least one head", fix="leave it out for no attention")
    return array


def check_heads(B: Array, V: Array) -> None:
    """Raise :class:`InvalidInput` unless B and V agree on the number of heads and on d."""
    if B.ndim == 3 and V.ndim == 3 and B.shape[0] != V.shape[0]:
        raise InvalidInput(
            "V",
            got=f"{V.shape[0]} heads beside {B.shape[0]} heads of B",
            wanted="as many heads in B as in V",
            fix="give each head its own B and V",
        )
    if B.ndim >= 2 and V.ndim >= 2 and B.shape[-1] != V.shape[-1]:
        raise InvalidInput(
            "V",
            got=f"{shape_in_words(V.shape)} beside B of {shape_in_words(B.shape)}",
            wanted="the same dimension d in B and V",
        )
