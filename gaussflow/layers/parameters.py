"""Whole layers: the paper's system (A, B, V, b), and any attention beside any feed-forward."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gaussflow.arrays import is_concrete, shape_in_words
from gaussflow.errors import InvalidInput
from gaussflow.gaussian import assembled
from gaussflow.layers.attention import SoftmaxAttention, as_heads, check_heads
from gaussflow.layers.feedforward import AffineFeedForward, as_bias, as_matrix
from gaussflow.layers.field import AffineField, MeanFieldLayer, State


class Block(MeanFieldLayer):
    """A Transformer block: the fields of its parts (any attentions, any feed-forwards) added up."""

    layers: tuple[MeanFieldLayer, ...]

    def __init__(self, *layers: Any):
        if not layers:
            raise InvalidInput("layers", got="nothing", wanted="at least one attention or feed-forward layer")
        for layer in layers:
            if not isinstance(layer, MeanFieldLayer):
                raise InvalidInput("layers", got=type(layer).__name__, wanted="attention or feed-forward layers")
        dims = sorted({layer.dim for layer in layers if layer.dim is not None})
        if len(dims) > 1:
            raise InvalidInput("layers", got=f"dimensions {dims}", wanted="one dimension d for all parts")
        self.layers = layers

    @property
    def dim(self) -> int | None:
        return next((layer.dim for layer in self.layers if layer.dim is not None), None)

    @property
    def growth(self) -> str:
        return "linear" if any(part.growth == "linear" for part in self.parts) else "bounded"

    @property
    def autonomous(self) -> bool:
        return all(layer.autonomous for layer in self.layers)

    @property
    def parts(self) -> tuple[MeanFieldLayer, ...]:
        return tuple(part for layer in self.layers for part in layer.parts)

    def affine_field(self, gaussian: State) -> AffineField:
        field = self.layers[0].affine_field(gaussian)
        for layer in self.layers[1:]:
            field = field + layer.affine_field(gaussian)
        return field

    def velocity(self, x: Float[Array, "n d"], tokens: Float[Array, "m d"]) -> Float[Array, "n d"]:
        return sum((layer.velocity(x, tokens) for layer in self.layers), start=jnp.zeros_like(x))

    def lyapunov_matrix(self, gaussian: State) -> Float[Array, "d d"]:
        matrices = [layer.lyapunov_matrix(gaussian) for layer in self.layers]
        return sum(matrices[1:], start=matrices[0])


class Parameters(MeanFieldLayer):
    """The parameters (A, B, V, b) of the Gaussian mean-field Transformer, arXiv 2606.07600.

        μ' = (A + V) μ + V Σ B μ + b
        Σ' = A Σ + Σ Aᵀ + V Σ B Σ + Σ Bᵀ Σ Vᵀ

    Parameters
    ----------
    A:
        feed-forward matrix, (d, d) or a scalar c meaning cI.
    B, V:
        scores ⟨Bx, y⟩ and values, (d, d), (heads, d, d), or a scalar c meaning cI. Heads add up. A scalar V marks
        V = vI, for which the flow has a closed form, also under ``jit``.
    b:
        bias, (d,).

    What is left out is zero. Batches come from ``jax.vmap(Parameters)`` or :func:`gaussflow.stack`, never from a
    leading axis, which means heads.

    Raises
    ------
    InvalidInput
        for shapes that do not fit together, NaN, infinite or complex entries, or a scalar b.
    """

    A: Float[Array, "*_"]
    B: Float[Array, "*_"]
    V: Float[Array, "*_"]
    b: Float[Array, "*batch d"] | None

    def __init__(self, A: Any = 0.0, B: Any = 0.0, V: Any = 0.0, b: Any = None):
        self.A, self.B, self.V = as_matrix(A, "A"), as_heads(B, "B"), as_heads(V, "V")
        b = as_bias(b)
        check_heads(self.B, self.V)
        first, d = "", None
        for name, array in (("A", self.A), ("B", self.B), ("V", self.V), ("b", b)):
            if array is None or array.ndim == 0:
                continue
            if d is None:
                first, d = name, array.shape[-1]
            elif array.shape[-1] != d:
                raise InvalidInput(
                    name,
                    got=f"{shape_in_words(array.shape)} beside {first} of dimension {d}",
                    wanted="one dimension d in A, B, V and b",
                )
        self.b = jnp.zeros(d, self.A.dtype) if b is None and d is not None else b

    @property
    def dim(self) -> int | None:
        return next((x.shape[-1] for x in (self.A, self.B, self.V, self.b) if x is not None and x.ndim > 0), None)

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        return self.attention.heads

    @property
    def attention(self) -> SoftmaxAttention:
        return assembled(SoftmaxAttention, B=self.B, V=self.V)

    @property
    def feedforward(self) -> AffineFeedForward:
        return assembled(AffineFeedForward, A=self.A, b=self.b)

    @property
    def growth(self) -> str:
        return "linear"

    @property
    def parts(self) -> tuple[MeanFieldLayer, ...]:
        return (self.attention, self.feedforward)

    def affine_field(self, gaussian: State) -> AffineField:
        return self.attention.affine_field(gaussian) + self.feedforward.affine_field(gaussian)

    def velocity(self, x: Float[Array, "n d"], tokens: Float[Array, "m d"]) -> Float[Array, "n d"]:
        return self.attention.velocity(x, tokens) + self.feedforward.velocity(x, tokens)

    def lyapunov_matrix(self, gaussian: State) -> Float[Array, "d d"]:
        feedforward = self.feedforward.lyapunov_matrix(gaussian)
        return self.attention.lyapunov_matrix(gaussian) + feedforward

    def scalar_value(self) -> Array | None:
        """v if V = vI (a scalar V, or a concrete V that equals vI exactly, the same for all heads), else None."""
        if self.V.ndim == 0:
            return self.V
        if not is_concrete(self.V):
            return None
        values = np.asarray(self.V)
        if np.count_nonzero(values) > values.size // max(values.shape[-1], 1):
            return None
        v = values.reshape(-1)[0] if values.size else 0.0
        same = np.array_equal(values, np.broadcast_to(v * np.eye(values.shape[-1]), values.shape))
        return jnp.asarray(v, self.V.dtype) if same else None

    def __str__(self) -> str:
        shapes = ", ".join(
            f"{name} {'scalar' if x.ndim == 0 else 'x'.join(map(str, x.shape))}"
            for name, x in (("A", self.A), ("B", self.B), ("V", self.V), ("b", self.b))
            if x is not None
        )
        return f"Parameters in dimension {self.dim if self.dim is not None else 'any'}: {shapes}"
