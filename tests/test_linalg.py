"""Factors, roots and solvers: scale-aware decisions, derivatives against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow import linalg
from gaussflow.errors import NumericalFailure
from gaussflow.linalg import (
    asymmetry,
    factor_of_covariance,
    numerical_rank_of_factor,
    solve_lyapunov,
    spectral_abscissa,
)


def of_numpy(function):
    """The functions of JAX arrays, called with NumPy arrays."""
    return lambda *arrays: function(*map(jnp.asarray, arrays))


gram, row_norms = of_numpy(linalg.gram), of_numpy(linalg.row_norms)
frobenius_norm = of_numpy(linalg.frobenius_norm)
psd_sqrt, polar_factor = of_numpy(linalg.psd_sqrt), of_numpy(linalg.polar_factor)
pseudo_inverse = of_numpy(linalg.pseudo_inverse)

D = 4


def orthogonal(rng, d=D):
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def slope(function, x, direction, h=1e-6):
    return (np.asarray(function(x + h * direction)) - np.asarray(function(x - h * direction))) / (2 * h)


def tangent(function, x, direction):
    return np.asarray(jax.jvp(function, (jnp.asarray(x),), (jnp.asarray(direction),))[1])


# ---------------------------------------------------------------- norms


def test_frobenius_norm_at_any_scale():
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    for scale in (1e-300, 1.0, 1e300):
        assert abs(float(frobenius_norm(scale * x)) / scale - 5.0) < 1e-14
    assert float(frobenius_norm(np.zeros((2, 0)))) == 0.0


def test_gradient_of_the_norm():
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert np.allclose(jax.grad(frobenius_norm)(x), x / 5, rtol=1e-15)
    assert np.all(jax.grad(frobenius_norm)(np.zeros((2, 2))) == 0)
    assert np.all(np.isfinite(jax.hessian(frobenius_norm)(np.zeros((2, 2)))))


def test_row_norms():
    assert np.allclose(
        row_norms(np.array([[3e-200, 4e-200], [0.0, 0.0], [1e200, 0.0]])), [5e-200, 0, 1e200], rtol=1e-15
    )


def test_gram_is_exactly_symmetric():
    L = np.random.default_rng(0).normal(size=(65, 7))
    S = np.asarray(gram(L))
    assert np.array_equal(S, S.T)
    assert np.allclose(S, L @ L.T, atol=1e-13)


# ---------------------------------------------------------------- factors of covariances


@pytest.mark.parametrize("scale", [1e-300, 1e-18, 1.0, 1e18, 1e300])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_factor_has_the_rank_whatever_the_scale(scale, rank):
    L = np.random.default_rng(rank).normal(size=(D, rank))
    S = (L @ L.T) * scale
    factor = factor_of_covariance(S)
    assert factor.shape == (D, rank)
    assert np.max(np.abs(factor / np.sqrt(scale) @ factor.T / np.sqrt(scale) - L @ L.T)) < 1e-14 * np.max(
        np.abs(L @ L.T)
    )


def test_units_of_coordinates_do_not_change_the_rank():
    rng = np.random.default_rng(1)
    L = rng.normal(size=(D, 3))
    units = np.array([1e-12, 1.0, 1e9, 1e-3])[:, None]
    S = units * (L @ L.T) * units.T
    factor = factor_of_covariance(S)
    assert factor.shape == (D, 3)
    assert np.max(np.abs((factor @ factor.T - S) / (units * units.T))) < 1e-13


def test_constant_coordinates_and_zero():
    S = np.diag([2.0, 0.0, 3.0])
    assert factor_of_covariance(S).shape == (3, 2)
    assert factor_of_covariance(np.zeros((3, 3))).shape == (3, 0)


def test_rounding_below_zero_is_accepted():
    S = np.diag([1.0, 1.0, -1e-16])
    factor = factor_of_covariance(S)
    assert factor.shape == (3, 2)
    L = np.random.default_rng(2).normal(size=(40, 5))
    assert np.linalg.eigvalsh(L @ L.T)[0] < 0  # what rounding does
    assert factor_of_covariance(L @ L.T).shape == (40, 5)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_indefinite_is_refused_with_its_numbers(scale):
    S = scale * np.diag([2.0, 1.0, -2e-6])
    lowest = f"{-2e-6 * scale:.6g}".replace("+", r"\+")
    with pytest.raises(
        gf.InvalidInput, match=rf"^covariance: got an indefinite matrix: .* {lowest}, 1e-06 of the largest"
    ):
        factor_of_covariance(S)


def test_hidden_indefiniteness_is_refused():
    """[[1, 2], [2, 1]] has a clean diagonal; in badly scaled coordinates it must be seen as well."""
    for u in (1.0, 1e-4):
        with pytest.raises(gf.InvalidInput, match="indefinite"):
            factor_of_covariance(np.array([[1.0, 2 * u], [2 * u, u * u]]))


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_asymmetry_is_relative(scale):
    S = scale * np.array([[2.0, 1.0], [1.0 + 1e-13, 2.0]])
    assert factor_of_covariance(S).shape == (2, 2)
    with pytest.raises(gf.InvalidInput, match=r"differs from its transpose by 0\.05 of its largest entry"):
        factor_of_covariance(scale * np.array([[2.0, 1.0], [1.1, 2.0]]))
    assert np.isclose(asymmetry(scale * np.array([[2.0, 1.0], [1.1, 2.0]])), 0.05)
    assert asymmetry(np.zeros((2, 2))) == 0.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, jnp.bfloat16])
def test_single_and_half_precision_are_judged_by_their_own_rounding(dtype):
    L = np.random.default_rng(3).normal(size=(6, 2)).astype(dtype)
    S = (L @ L.T).astype(dtype)
    wide = S.astype(np.float64)
    assert np.linalg.eigvalsh(wide)[0] < -1e-10  # far below zero for double precision
    factor = factor_of_covariance(S)
    assert factor.shape == (6, 2)
    eps = float(jnp.finfo(dtype).eps)
    assert np.max(np.abs(factor @ factor.T - wide)) < 6 * eps * np.max(np.abs(wide))
    with pytest.raises(gf.InvalidInput, match="indefinite"):
        factor_of_covariance(wide)
    with pytest.raises(gf.InvalidInput, match="indefinite"):
        factor_of_covariance(np.diag([1.0, -0.9]).astype(dtype))


def test_shapes_are_refused():
    with pytest.raises(gf.InvalidInput, match=r"^covariance: got shape \(2, 3\); wanted a square matrix"):
        factor_of_covariance(np.ones((2, 3)))
    with pytest.raises(gf.InvalidInput, match=r"got shape \(3,\).*numpy.diag"):
        factor_of_covariance(np.ones(3))


def test_rank_of_a_factor():
    L = np.random.default_rng(4).normal(size=(5, 2))
    assert numerical_rank_of_factor(L) == 2
    assert numerical_rank_of_factor(np.hstack([L, L @ [[1.0], [2.0]], np.zeros((5, 1))])) == 2
    assert numerical_rank_of_factor(np.diag([1e-200, 1.0, 1e200])) == 3
    assert numerical_rank_of_factor(np.zeros((5, 0))) == numerical_rank_of_factor(np.zeros((5, 3))) == 0
    third = (L @ [[1.0], [2.0]]).astype(np.float32)
    assert numerical_rank_of_factor(np.hstack([L.astype(np.float32), third])) == 2


# ---------------------------------------------------------------- square root


def test_square_root():
    rng = np.random.default_rng(5)
    Q = orthogonal(rng)
    for values in ([1.0, 2.0, 3.0, 4.0], [1e-10, 1e-5, 1.0, 1e3], [0.0, 0.0, 1.0, 2.0], [1.0] * 4, [0.0] * 4):
        S = (Q * values) @ Q.T
        root = np.asarray(psd_sqrt(S))
        assert np.array_equal(root, root.T)
        assert np.allclose(root @ root, S, atol=1e-13 * max(values))


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0], [1.0] * 4, [2.0, 2.0, 1.0, 1.0], [1e-6, 1e-3, 1.0, 1.0]])
def test_derivative_of_the_root(values):
    """The Lyapunov equation X Ẋ + Ẋ X = Σ̇, also at repeated eigenvalues."""
    rng = np.random.default_rng(6)
    Q, H = orthogonal(rng), rng.normal(size=(D, D))
    S, H = (Q * values) @ Q.T, H + H.T
    root, derivative = np.asarray(psd_sqrt(S)), tangent(psd_sqrt, S, H)
    assert np.allclose(root @ derivative + derivative @ root, H, atol=1e-9)
    if min(values) >= 1:
        assert np.allclose(derivative, slope(psd_sqrt, S, H), atol=1e-8)


def test_derivative_of_a_singular_root_within_its_range():
    rng = np.random.default_rng(7)
    L, X = rng.normal(size=(D, 2)), rng.normal(size=(D, D))
    S, H = L @ L.T, X @ L @ L.T + L @ L.T @ X.T
    moved = lambda t: psd_sqrt((np.eye(D) + t * X) @ S @ (np.eye(D) + t * X).T)
    expected = (np.asarray(moved(1e-5)) - np.asarray(moved(-1e-5))) / 2e-5
    derivative = tangent(psd_sqrt, S, H)
    # The root has an error of √eps on the kernel, so its finite difference cannot be better than 1e-8/1e-5.
    assert np.allclose(derivative, expected, atol=2e-3)
    root = np.asarray(psd_sqrt(S))
    assert np.allclose(root @ derivative + derivative @ root, H, atol=1e-7)
    assert np.all(tangent(psd_sqrt, np.zeros((D, D)), H) == 0)


def test_root_of_a_batch():
    S = np.stack([np.eye(D), np.diag([1.0, 4.0, 9.0, 0.0])])
    assert np.allclose(psd_sqrt(S), np.sqrt(S), atol=1e-15)


# ---------------------------------------------------------------- polar factor and pseudo-inverse


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0], [1.0] * 4, [1e-3, 1e-3, 1.0, 1.0]])
def test_polar_factor_and_its_derivative(values):
    rng = np.random.default_rng(8)
    P, Q, X = orthogonal(rng), orthogonal(rng), rng.normal(size=(D, D))
    K = (P * values) @ Q.T
    U = np.asarray(polar_factor(K))
    assert np.allclose(U, P @ Q.T, atol=1e-12)
    H = U.T @ K
    assert np.allclose(H, H.T, atol=1e-13)
    assert np.min(np.linalg.eigvalsh(H)) > 0
    direction = 1e-3 * X
    assert np.allclose(tangent(polar_factor, K, direction), slope(polar_factor, K, direction, 1e-4), atol=1e-6)
    assert np.all(np.isfinite(tangent(polar_factor, np.diag([1.0, 0, 0, 0]), X)))


@pytest.mark.parametrize("shape", [(4, 4), (4, 2), (2, 4)])
def test_pseudo_inverse_and_its_derivatives(shape):
    rng = np.random.default_rng(9)
    K, X, Y = rng.normal(size=(3, *shape))
    inverse = lambda K: pseudo_inverse(K, min(shape))
    assert np.allclose(inverse(K), np.linalg.pinv(K), atol=1e-13)
    assert np.allclose(tangent(inverse, K, X), slope(inverse, K, X, 1e-5), atol=1e-6)
    derivative = lambda K: jax.jvp(inverse, (K,), (X,))[1]
    assert np.allclose(tangent(derivative, K, Y), slope(derivative, K, Y, 1e-5), rtol=1e-5, atol=1e-5)


def test_pseudo_inverse_of_lower_rank():
    rng = np.random.default_rng(10)
    K, X = rng.normal(size=(4, 2)) @ rng.normal(size=(2, 4)), rng.normal(size=(4, 4))
    inverse = lambda K: pseudo_inverse(K, 2)
    assert np.allclose(inverse(K), np.linalg.pinv(K, rcond=1e-12), atol=1e-12)
    moved = lambda t: np.asarray(inverse((np.eye(4) + t * X) @ K))
    expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert np.allclose(tangent(inverse, K, X @ K), expected, atol=1e-7)
    assert np.all(pseudo_inverse(np.zeros((3, 2)), 0) == 0)


# ---------------------------------------------------------------- Lyapunov, spectra


def test_lyapunov_with_residual_and_separation():
    rng = np.random.default_rng(11)
    A = rng.normal(size=(D, D)) - 4 * np.eye(D)
    Q = rng.normal(size=(D, D))
    Q = Q + Q.T
    answer = solve_lyapunov(A, Q)
    assert np.allclose(A @ answer.solution + answer.solution @ A.T + Q, 0, atol=1e-12)
    assert np.array_equal(answer.solution, answer.solution.T)
    assert answer.residual < 1e-14
    eigenvalues = np.linalg.eigvals(A)
    assert np.isclose(answer.separation, np.min(np.abs(eigenvalues[:, None] + eigenvalues)))


@pytest.mark.parametrize("A", [np.diag([1.0, -1.0]), np.diag([0.0, 2.0]), np.array([[0.0, 1.0], [-1.0, 0.0]])])
def test_singular_lyapunov_equation_is_refused(A):
    with pytest.raises(NumericalFailure, match="singular: two eigenvalues of A sum to"):
        solve_lyapunov(A, np.eye(2))


def test_spectral_abscissa():
    assert spectral_abscissa(np.array([[-1.0, 5.0], [-5.0, -1.0]])) == -1.0
    assert spectral_abscissa(np.zeros((0, 0))) == -np.inf
