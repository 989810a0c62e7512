"""Softmax attention: the affine field against quadrature and finite tokens, and the laws it obeys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow.gaussian import Moments

D = 3


def softmax_average(B, x, tokens, weights):
    """Σ w e^⟨Bx, y⟩ y / Σ w e^⟨Bx, y⟩ in plain numpy."""
    scores = tokens @ (B @ x)
    w = weights * np.exp(scores - scores.max())
    return w @ tokens / w.sum()


@pytest.mark.parametrize("d", [1, 2])
def test_field_against_gauss_hermite_quadrature(d):
    """Tilting N(μ, Σ) by e^⟨Bx, y⟩ shifts its mean by ΣBx: exactly what the quadrature finds."""
    rng = np.random.default_rng(d)
    B, V, L, mean = *rng.normal(size=(3, d, d)), rng.normal(size=d)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * d)], axis=1)
    mass = np.prod(np.stack([axis.ravel() for axis in np.meshgrid(*[weights] * d)], axis=1), axis=1)
    tokens = mean + grid @ L.T
    field = gf.SoftmaxAttention(B=B, V=V).affine_field(gf.Gaussian.from_factor(mean, L))
    for x in rng.normal(size=(3, d)):
        expected = V @ softmax_average(B, x, tokens, mass)
        assert np.allclose(field.at(jnp.asarray(x)), expected, rtol=1e-11, atol=1e-11)


def test_field_against_many_tokens():
    """A softmax over n tokens is a weighted mean, of standard error √(Σ w²(y − mean)²)/Σ w; six of them are allowed.

    Each query is scaled so that its scores have standard deviation one: with a large one a softmax over any number of
    tokens stays far off.
    """
    rng = np.random.default_rng(3)
    B, V, L, mean = *rng.normal(size=(3, D, D)), np.ones(D)
    g, attention = gf.Gaussian.from_factor(mean, L), gf.SoftmaxAttention(B=B, V=V)
    tokens = np.asarray(g.sample(jax.random.PRNGKey(0), 200_000))
    queries = rng.normal(size=(4, D))
    queries /= np.linalg.norm(queries @ B.T @ L, axis=1, keepdims=True)
    found = np.asarray(attention.velocity(jnp.asarray(queries), jnp.asarray(tokens)))
    field = attention.affine_field(g)
    for query, velocity in zip(queries, found, strict=True):
        w = np.exp(tokens @ (B @ query))
        average = w @ tokens / w.sum()
        error = np.sqrt(np.sum((w[:, None] * ((tokens - average) @ V.T)) ** 2, axis=0)) / w.sum()
        assert np.all(np.abs(velocity - field.at(jnp.asarray(query))) < 6 * error)
        assert np.all(error < 0.02 * np.linalg.norm(V))


@pytest.mark.parametrize(
    ("B", "V"),
    [("matrix", "matrix"), ("scalar", "matrix"), ("matrix", "scalar"), ("scalar", "scalar"), ("heads", "heads"),
     ("heads", "scalar"), ("scalar", "heads"), ("heads", "matrix"), ("matrix", "heads")],
)  # fmt: skip
def test_velocity_against_numpy(B, V):
    rng = np.random.default_rng(4)
    kinds = {"scalar": -0.6, "matrix": rng.normal(size=(D, D)), "heads": rng.normal(size=(2, D, D))}
    attention = gf.SoftmaxAttention(B=kinds[B], V=kinds[V])
    assert attention.heads == (2 if "heads" in (B, V) else 1)
    x, tokens = rng.normal(size=(4, D)), rng.normal(size=(6, D))
    as_heads = lambda p: np.broadcast_to(p * np.eye(D) if np.ndim(p) == 0 else p, (attention.heads, D, D))
    heads = list(zip(as_heads(kinds[B]), as_heads(kinds[V]), strict=True))
    expected = [sum(v @ softmax_average(b, row, tokens, np.ones(6)) for b, v in heads) for row in x]
    assert np.allclose(attention.velocity(jnp.asarray(x), jnp.asarray(tokens)), expected, atol=1e-13)
    # The same heads, one a layer, add up to the same field.
    g = gf.Gaussian(rng.normal(size=D), np.eye(D))
    together = attention.affine_field(g)
    apart = [gf.SoftmaxAttention(B=b, V=v).affine_field(g) for b, v in heads]
    assert np.allclose(together.matrix, sum(field.matrix for field in apart), atol=1e-13)
    assert np.allclose(together.offset, sum(field.offset for field in apart), atol=1e-13)


def test_velocity_survives_huge_scores():
    tokens = jnp.asarray([[1.0], [2.0]])
    assert np.allclose(gf.SoftmaxAttention(B=1e4, V=1.0).velocity(tokens, tokens), 2.0)


def draw(seed, rank=D):
    rng = np.random.default_rng(seed)
    return (*rng.normal(size=(2, D, D)), gf.Gaussian.from_factor(rng.normal(size=D), rng.normal(size=(D, rank))))


@pytest.mark.parametrize("eps", [0.1, -3.0])
def test_gauge(eps):
    """(B, V) → (εB, V/ε) leaves the matrix; the offset scales with V."""
    B, V, g = draw(5)
    one, other = (gf.SoftmaxAttention(B=s * B, V=V / s).affine_field(g) for s in (1.0, eps))
    assert np.allclose(one.matrix, other.matrix, atol=1e-12)
    assert np.allclose(other.offset, one.offset / eps, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_change_of_coordinates(rank):
    """x → Tx: V → TVT⁻¹, B → T⁻ᵀBT⁻¹, and the field goes along, M → TMT⁻¹ and c → Tc; so do finite tokens."""
    B, V, g = draw(6, rank)
    T = np.random.default_rng(7).normal(size=(D, D)) + 3 * np.eye(D)
    inverse = np.linalg.inv(T)
    moved = gf.Gaussian.from_factor(T @ g.mean, T @ g.factor)
    attention, there = gf.SoftmaxAttention(B=B, V=V), gf.SoftmaxAttention(B=inverse.T @ B @ inverse, V=T @ V @ inverse)
    field, field_there = attention.affine_field(g), there.affine_field(moved)
    assert np.allclose(field_there.matrix, T @ field.matrix @ inverse, atol=1e-11)
    assert np.allclose(field_there.offset, T @ field.offset, atol=1e-12)
    x = jnp.asarray(np.random.default_rng(8).normal(size=(5, D)))
    assert np.allclose(there.velocity(x @ T.T, x @ T.T), attention.velocity(x, x) @ T.T, atol=1e-11)


def test_a_dense_covariance_gives_the_same_field():
    B, V, g = draw(9)
    attention = gf.SoftmaxAttention(B=B, V=V)
    one, other = attention.affine_field(g), attention.affine_field(Moments(g.mean, g.covariance))
    assert np.allclose(one.matrix, other.matrix, atol=1e-12)
    assert np.array_equal(one.offset, other.offset)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("A", [0.0, "matrix"])
def test_lyapunov_matrix_is_the_derivative_where_values_are_multiples_of_the_identity(heads, A):
    """H ↦ NH + HNᵀ against the derivative of Σ' = MΣ + ΣMᵀ by JAX."""
    rng = np.random.default_rng(10)
    B = rng.normal(size=(heads, D, D))
    V = rng.normal(size=(heads, 1, 1)) * np.eye(D)
    A = rng.normal(size=(D, D)) if A == "matrix" else 0.0
    for b, v in ((B, V), (B[0], V[0]), (B, V[0]), (B, V[0, 0, 0]), (B[0], V), (0.5, V[0])):
        p = gf.Parameters(A=A, B=b, V=v)
        S, H = (jnp.asarray(x @ x.T) for x in rng.normal(size=(2, D, D)))
        mean = jnp.zeros(D)
        rate = lambda S, p=p, mean=mean: p.covariance_rate(Moments(mean, S))
        N = p.lyapunov_matrix(Moments(mean, S))
        assert np.allclose(N @ H + H @ N.T, jax.jvp(rate, (S,), (H,))[1], atol=1e-11)


def test_covariance_rate_is_exactly_symmetric():
    B, V, g = draw(11)
    rate = np.asarray(gf.Parameters(A=B, B=B, V=V).covariance_rate(g))
    M = B + V @ g.covariance @ B
    assert np.array_equal(rate, rate.T)
    assert np.allclose(rate, M @ g.covariance + g.covariance @ M.T, atol=1e-11)
