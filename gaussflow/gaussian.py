"""Gaussians with a mean and a factor: the state of a mean-field Transformer."""

from __future__ import annotations

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gaussflow.arrays import as_real_array, input_precision, is_concrete, shape_in_words
from gaussflow.errors import InvalidInput
from gaussflow.linalg import (
    factor_of_covariance,
    factor_of_traced_covariance,
    gram,
    numerical_rank_of_factor,
    psd_sqrt,
    rank_tolerance,
    require_square,
    transpose,
)

Module = TypeVar("Module", bound=eqx.Module)


class Gaussian(eqx.Module):
    """The normal law N(μ, Σ), Σ = L Lᵀ, possibly singular.

    Parameters
    ----------
    mean:
        μ, shape (d,).
    covariance:
        Σ, shape (d, d), symmetric positive semidefinite. Concrete input is validated and factored with as many columns
        as its numerical rank. A traced covariance (inside ``jit``, ``vmap`` or ``grad``) gets d columns, those beyond
        its rank zero, and NaN if it is indefinite; see :func:`gaussflow.linalg.factor_of_traced_covariance` for its
        derivatives.
    factor:
        L, shape (d, r), instead of ``covariance``; kept as given. Zero columns are allowed: r = 0 is a point.

    Raises
    ------
    InvalidInput
        for shapes that do not fit, NaN, complex numbers, or a covariance that is not symmetric positive semidefinite.
    """

    mean: Float[Array, "*batch d"]
    factor: Float[Array, "*batch d r"]

    def __init__(self, mean: Any, covariance: Any = None, *, factor: Any = None):
        mean = as_real_array(mean, "mean")
        if mean.ndim != 1 or mean.shape[0] == 0:
            raise InvalidInput("mean", got=shape_in_words(mean.shape), wanted="a vector of shape (d,), d at least 1")
        if (covariance is None) == (factor is None):
            got = "neither" if covariance is None else "both"
            raise InvalidInput("covariance", got=f"{got} of covariance and factor", wanted="exactly one of the two")
        name = "covariance" if factor is None else "factor"
        given = as_real_array(covariance if factor is None else factor, name)
        if factor is None:
            require_square(given, name)
        elif given.ndim != 2:
            raise InvalidInput(name, got=shape_in_words(given.shape), wanted="a matrix of shape (d, r)")
        if given.shape[0] != mean.shape[0]:
            raise InvalidInput(
                name,
                got=f"{shape_in_words(given.shape)} beside a mean of length {mean.shape[0]}",
                wanted="the dimension of the mean",
            )
        if factor is None:
            if is_concrete(given):
                given = jnp.asarray(factor_of_covariance(covariance), dtype=mean.dtype)
            else:
                given = factor_of_traced_covariance(given)
        self.mean, self.factor = mean, given

    @classmethod
    def from_factor(cls, mean: Any, factor: Any) -> Gaussian:
        """N(mean, L Lᵀ) from a factor L of shape (d, r); ranks r < d, and r = 0, are allowed."""
        return cls(mean, factor=factor)

    @classmethod
    def from_samples(cls, samples: Any, *, ddof: int = 1) -> Gaussian:
        """The Gaussian with the empirical mean and covariance of ``samples``, shape (n, d).

        The factor comes from a singular value decomposition of the centred samples, never from a covariance matrix, so
        small variances keep their digits. ``ddof`` as in :func:`numpy.cov` (1: unbiased). One sample gives a point.
        Under ``jit`` the factor has min(n, d) columns; first derivatives are exact at any rank.

        Raises :class:`InvalidInput` unless ``samples`` has at least one row and one column.
        """
        x = as_real_array(samples, "samples")
        if x.ndim != 2 or 0 in x.shape:
            raise InvalidInput(
                "samples",
                got=shape_in_words(x.shape),
                wanted="an array of shape (n, d) with one sample a row, n and d at least 1",
            )
        n = x.shape[0]
        if isinstance(ddof, bool) or not isinstance(ddof, int) or not 0 <= ddof < max(n, 2):
            raise InvalidInput("ddof", got=repr(ddof), wanted="an integer from 0 to n - 1")
        mean = jnp.mean(x, axis=0)
        centred = (x - mean) / np.sqrt(max(n - ddof, 1))
        if is_concrete(x):
            return cls(mean, factor=_factor_of_samples(np.asarray(x), np.asarray(centred), input_precision(samples)))
        if n > x.shape[1]:  # rows QᵀX with Q held fixed have the Gram matrix of X, and so has their first derivative
            centred = transpose(jax.lax.stop_gradient(jnp.linalg.qr(centred)[0])) @ centred
        return cls(mean, factor=transpose(centred))

    @property
    def dim(self) -> int:
        """d, the dimension of a token."""
        return self.mean.shape[-1]

    @property
    def rank(self) -> int:
        """The number of columns of the factor, an upper bound on the rank known without looking at numbers."""
        return self.factor.shape[-1]

    def numerical_rank(self) -> int:
        """The rank of the covariance, decided on the numbers (concrete values only)."""
        return numerical_rank_of_factor(np.asarray(self.factor))

    @property
    def covariance(self) -> Float[Array, "*batch d d"]:
        """Σ = L Lᵀ, exactly symmetric."""
        return gram(self.factor)

    @property
    def covariance_chain(self) -> tuple[Array, ...]:
        """Σ as a product of matrices, (L, Lᵀ), for operators that never form it."""
        return (self.factor, transpose(self.factor))

    def sample(self, key: Array, n: int) -> Float[Array, "n d"]:
        """``n`` independent draws, shape (n, d)."""
        if n < 0:
            raise InvalidInput("n", got=str(n), wanted="a number of samples")
        noise = jax.random.normal(key, (n, self.rank), dtype=self.factor.dtype)
        return self.mean + noise @ transpose(self.factor)

    def __str__(self) -> str:
        if not is_concrete(self.mean, self.factor) or self.mean.ndim != 1:
            return f"Gaussian(mean {self.mean.shape}, factor {self.factor.shape})"
        head = f"Gaussian in dimension {self.dim}, rank {self.rank}"
        variances = np.sort(np.linalg.svd(np.asarray(self.factor), compute_uv=False) ** 2)[::-1]
        return "\n".join(
            [
                head,
                f"  mean         {_numbers(np.asarray(self.mean))}",
                f"  eigenvalues  {_numbers(variances) or 'none: a point'}",
            ]
        )


def assembled(kind: type[Module], **fields: Any) -> Module:
    """An instance of an equinox module from fields that are known to be right: no second look, and no cost."""
    module = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(module, name, value)
    return module


class Moments(eqx.Module):
    """Mean and dense covariance: a Gaussian as the covariance form carries it, without a factor."""

    mean: Float[Array, "*batch d"]
    covariance: Float[Array, "*batch d d"]

    @property
    def dim(self) -> int:
        return self.mean.shape[-1]

    @property
    def factor(self) -> Float[Array, "*batch d d"]:
        """A square factor, computed by an eigendecomposition: only kernels that need one pay for it."""
        return psd_sqrt(self.covariance)

    @property
    def covariance_chain(self) -> tuple[Array, ...]:
        return (self.covariance,)


def _factor_of_samples(x: np.ndarray, centred: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The factor of the empirical covariance of concrete samples, with as many columns as its numerical rank.

    ``centred`` is X − mean over √(n − ddof); ``dtype`` is the precision in which the samples were written.
    """
    x, centred = x.astype(np.float64), centred.astype(np.float64)
    d = x.shape[1]
    eps = float(jnp.finfo(dtype).eps)
    peaks = np.max(np.abs(centred), axis=0)
    scale = np.where(peaks > 0, peaks, 1.0)
    deviations = peaks * np.linalg.norm(centred / scale, axis=0)
    # The digits a column's offset leaves to its variation; a constant column leaves rounding, which is no variance.
    noise = eps * np.max(np.abs(x), axis=0)
    seen = deviations > 4 * noise
    factor = np.zeros((d, 0))
    if seen.any():
        deviations, noise = deviations[seen], noise[seen]
        _, singular, right = np.linalg.svd(centred[:, seen] / deviations, full_matrices=False)
        blur = np.linalg.norm(right * (noise / deviations), axis=1)
        kept = singular > np.maximum(rank_tolerance(d, dtype) * singular[0], 4 * blur)
        factor = np.zeros((d, int(kept.sum())))
        factor[seen] = deviations[:, None] * (right[kept].T * singular[kept])
    return factor


def _numbers(values: np.ndarray, most: int = 6) -> str:
    shown = "  ".join(f"{v:.5g}" for v in values[:most])
    return shown + (f"  ... ({len(values)} in all)" if len(values) > most else "")
