"""The one idea: a mean-field layer acts on a Gaussian as an affine field x ↦ Mx + c.

Whatever can state its affine field for a given Gaussian can be integrated, steered, linearised, swept and compiled.
"""

from __future__ import annotations

import abc
from functools import lru_cache, reduce
from operator import mul

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gaussflow.gaussian import Gaussian, Moments
from gaussflow.linalg import transpose

State = Gaussian | Moments
"""What a layer may be asked about: it has ``mean``, ``dim``, ``covariance``, ``factor`` and ``covariance_chain``."""

Chain = tuple[Array, ...]
"""A product of matrices, left to right. A scalar is a multiple of the identity; a leading axis (of heads) is summed."""


class AffineField(eqx.Module):
    """The field x ↦ Mx + c, with M kept as a sum of chains of factors.

    ``apply`` costs O(d²k) for k columns at most, whatever the chains, and O(d² r) for factors of rank r below k; the
    (d, d) matrix exists only when asked for.

    Attributes
    ----------
    chains:
        tuples of factors, multiplied left to right: matrices (d, d), (d, r) or (r, d), scalars for multiples of the
        identity, and stacks of matrices (heads, ·, ·), over which the product is summed.
    offset:
        c, shape (d,).
    """

    chains: tuple[Chain, ...]
    offset: Float[Array, "*batch d"]

    def apply(self, x: Float[Array, "d k"]) -> Float[Array, "d k"]:
        """M x, for the k columns of x, shape (d, k)."""
        total = jnp.zeros_like(x)
        for chain in self.chains:
            total = total + _sum_heads(_product((*chain, x)))
        return total

    @property
    def matrix(self) -> Float[Array, "d d"]:
        """M, shape (d, d)."""
        d = self.offset.shape[-1]
        total = jnp.zeros((d, d), self.offset.dtype)
        for chain in self.chains:
            product = _sum_heads(_product(chain))
            total = total + (product * jnp.eye(d, dtype=product.dtype) if product.ndim == 0 else product)
        return total

    def at(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        """M x + c at one point x, shape (d,)."""
        return self.apply(point[:, None])[:, 0] + self.offset

    def __add__(self, other: AffineField) -> AffineField:
        return AffineField(self.chains + other.chains, self.offset + other.offset)


def _product(chain: Chain) -> Array:
    """The product of a chain, its matrices multiplied in the cheapest order."""
    matrices = tuple(factor for factor in chain if factor.ndim > 0)
    scalars = [factor for factor in chain if factor.ndim == 0]
    return reduce(mul, scalars, *([_cheapest_product(matrices)] if matrices else []))


def _cheapest_product(matrices: tuple[Array, ...]) -> Array:
    sizes = (matrices[0].shape[-2], *(matrix.shape[-1] for matrix in matrices))

    def multiplied(first: int, last: int) -> Array:
        if first == last:
            return matrices[first]
        _, split = cheapest_order(sizes[first : last + 2])
        return multiplied(first, first + split) @ multiplied(first + split + 1, last)

    return multiplied(0, len(matrices) - 1)


@lru_cache(maxsize=1024)
def cheapest_order(sizes: tuple[int, ...]) -> tuple[int, int]:
    """Fewest multiplications for a product of matrices, and the matrix after which to split it first.

    Matrix k has shape (sizes[k], sizes[k + 1]). Of equal costs the earliest split wins: from the right, as a chain is
    applied to a vector.
    """
    if len(sizes) <= 2:
        return 0, 0
    costs = []
    for split in range(len(sizes) - 2):
        left, right = sizes[: split + 2], sizes[split + 1 :]
        join = sizes[0] * sizes[split + 1] * sizes[-1]
        costs.append((cheapest_order(left)[0] + cheapest_order(right)[0] + join, split))
    return min(costs)


def _sum_heads(product: Array) -> Array:
    return jnp.sum(product, axis=0) if product.ndim == 3 else product


class MeanFieldLayer(eqx.Module):
    """A layer of a mean-field Transformer, in continuous depth.

    A new kernel or activation is one subclass with ``affine_field`` and ``velocity``; integrators, certificates and
    controls need nothing else. Two declarations steer the blow-up machinery:

    ``growth``
        how M grows with Σ: ``"bounded"`` (no finite-time blow-up by itself) or ``"linear"``, M(ρΣ) = ρ M(Σ) exactly
        (and, unless ``autonomous``, M(ρΣ, √ρ μ) = ρ M(Σ, μ)).
    ``autonomous``
        True if M does not depend on the mean, so that the covariance flows by itself.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int | None:
        """d, or None if only scalars were given and nothing fixes the dimension."""

    @property
    def growth(self) -> str:
        return "bounded"

    @property
    def autonomous(self) -> bool:
        return True

    @property
    def parts(self) -> tuple[MeanFieldLayer, ...]:
        """The elementary layers whose fields add up to this one, each with its own ``growth``."""
        return (self,)

    @abc.abstractmethod
    def affine_field(self, gaussian: State) -> AffineField:
        """The field x ↦ Mx + c by which the layer moves every token of ``gaussian``."""

    @abc.abstractmethod
    def velocity(self, x: Float[Array, "n d"], tokens: Float[Array, "m d"]) -> Float[Array, "n d"]:
        """The velocity of the tokens x among the finite cloud ``tokens``, each a row."""

    def lyapunov_matrix(self, gaussian: State) -> Float[Array, "d d"]:
        """A matrix N whose operator H ↦ NH + HNᵀ resembles the derivative of the covariance flow at Σ.

        Only the speed of the implicit solver depends on it. Kernels whose M depends on Σ can do better than M.
        """
        return self.affine_field(gaussian).matrix

    def covariance_rate(self, gaussian: State) -> Float[Array, "d d"]:
        """Σ' = MΣ + ΣMᵀ, exactly symmetric, for a state with a dense covariance."""
        flow = self.affine_field(gaussian).matrix @ gaussian.covariance
        return flow + transpose(flow)
