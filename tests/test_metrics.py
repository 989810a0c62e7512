"""Distances between Gaussians: against closed forms and scipy, near zero, at singular covariances, and their gradients.

Most tests hold factors in one shape, (3, 3), singular ones with zero columns, so that each function compiles once.
"""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings

import gaussflow as gf
from gaussflow.metrics import (
    bures_wasserstein,
    kl_divergence,
    relative_covariance_error,
    relative_mean_error,
    transport_map,
)

D = 3
ORIGIN = np.zeros(D)


@jax.jit
def w2(factor_1, factor_2, mean_1=ORIGIN, mean_2=ORIGIN):
    return bures_wasserstein(gf.Gaussian(mean_1, factor=factor_1), gf.Gaussian(mean_2, factor=factor_2))


@jax.jit
def kl(factor_1, factor_2, mean_1=ORIGIN, mean_2=ORIGIN):
    return kl_divergence(gf.Gaussian(mean_1, factor=factor_1), gf.Gaussian(mean_2, factor=factor_2))


@jax.jit
def carry(factor_1, factor_2):
    return transport_map(gf.Gaussian(ORIGIN, factor=factor_1), gf.Gaussian(ORIGIN, factor=factor_2)).matrix


def rng_for(name):
    return np.random.default_rng(sum(map(ord, name)))


def orthogonal(rng, d=D):
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def with_rank(factor, rank):
    return factor * (np.arange(factor.shape[1]) < rank)


def scipy_w2(S1, S2):
    root = scipy.linalg.sqrtm(S1)
    cross = scipy.linalg.sqrtm(root @ S2 @ root)
    return np.sqrt(np.trace(S1 + S2 - 2 * cross.real))


def numpy_kl(S1, S2, shift):
    inverse = np.linalg.inv(S2)
    logs = np.linalg.slogdet(S2)[1] - np.linalg.slogdet(S1)[1]
    return 0.5 * (np.trace(inverse @ S1) - len(S1) + shift @ inverse @ shift + logs)


# ---------------------------------------------------------------- values


def test_against_scipy():
    rng = rng_for("scipy")
    for _ in range(5):
        L1, L2 = rng.normal(size=(2, D, D)) + 2 * np.eye(D)
        shift = rng.normal(size=D)
        S1, S2 = L1 @ L1.T, L2 @ L2.T
        expected = np.hypot(scipy_w2(S1, S2), np.linalg.norm(shift))
        assert np.isclose(w2(L1, L2, shift), expected, rtol=1e-10, atol=0)
        assert np.isclose(kl(L1, L2, shift), numpy_kl(S1, S2, shift), rtol=1e-10, atol=0)


def test_one_dimension():
    g = lambda mean, variance: gf.Gaussian([mean], [[variance]])
    distance = float(bures_wasserstein(g(1.0, 4.0), g(3.0, 0.25)))
    assert abs(distance - np.hypot(2.0, 1.5)) < 1e-15
    ratio = 4.0 / 0.25
    assert abs(float(kl_divergence(g(1.0, 4.0), g(3.0, 0.25))) - 0.5 * (ratio - 1 + 4 / 0.25 - np.log(ratio))) < 1e-14
    matrix, offset = transport_map(g(1.0, 4.0), g(3.0, 0.25))
    assert np.allclose(matrix, [[0.25]], rtol=1e-15)
    assert np.allclose(offset, [2.75], rtol=1e-15)


@pytest.mark.parametrize("condition", [1.0, 1e10])
def test_commuting_covariances(condition):
    """W₂² = Σ(√a − √b)² and KL = ½Σ(a/b − 1 − ln(a/b)) for eigenvalues a, b in one basis."""
    rng = rng_for("commuting")
    Q = orthogonal(rng)
    a = np.geomspace(1, 1 / np.sqrt(condition), D)  # standard deviations
    b = a * [1.5, 0.7, 2.0]
    L1, L2 = (Q * a) @ orthogonal(rng), (Q * b) @ orthogonal(rng)
    assert np.isclose(w2(L1, L2), np.linalg.norm(a - b), rtol=1e-13, atol=0)
    ratio = (a / b) ** 2
    assert np.isclose(
        kl(L1, L2), 0.5 * np.sum(ratio - 1 - np.log(ratio)), rtol=1e-15 * np.sqrt(condition) * 100, atol=0
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", [1e-12, 1e-8, 1e-3, 0.3])
def test_nearly_equal_gaussians_keep_their_digits(rank, size):
    """x ↦ (I + E)x with E symmetric and small is itself the optimal map, so W₂ = ‖E L₁‖ exactly."""
    rng = rng_for("near")
    L1 = with_rank((orthogonal(rng) * [1.0, 1e-2, 1e-5]), rank) @ orthogonal(rng)
    E = rng.normal(size=(D, D))
    E = size * (E + E.T) / 10
    L2 = (L1 + E @ L1) @ orthogonal(rng)
    exact = np.linalg.norm(E @ L1)
    # Rounding of the inputs themselves is eps ‖L‖; the textbook formula would be off by √eps = 1e-8.
    assert abs(float(w2(L1, L2)) - exact) < 2e-15
    assert abs(float(w2(L2, L1)) - exact) < 2e-15


def test_equal_gaussians():
    rng = rng_for("equal")
    for scale in (1e-150, 1.0, 1e150):
        for rank in (0, 1, 2, 3):
            L = with_rank(scale * rng.normal(size=(D, D)), rank)
            mean = scale * rng.normal(size=D)
            assert float(w2(L, L, mean, mean)) == 0.0
            turned = L @ orthogonal(rng)
            assert float(w2(L, turned, mean, mean)) < 1e-13 * scale
            assert 0 <= float(kl(L, L, mean, mean)) < 1e-25
            if rank > 1:
                assert 0 <= float(kl(L, turned, mean, mean)) < 1e-25


def test_ill_conditioned_equal_gaussians_in_many_dimensions():
    d = 30
    rng = rng_for("large")
    L = (orthogonal(rng, d) * np.geomspace(1, 1e-12, d)) @ orthogonal(rng, d)
    g, turned = (gf.Gaussian(np.zeros(d), factor=x) for x in (L, L @ orthogonal(rng, d)))
    gradient = jax.grad(lambda factor: bures_wasserstein(gf.Gaussian(np.zeros(d), factor=factor), turned))(L)
    assert float(bures_wasserstein(g, turned)) == 0.0
    assert np.all(gradient == 0)


def test_points():
    point = lambda *x: gf.Gaussian(x, factor=np.zeros((2, 0)))
    cloud = gf.Gaussian([0.0, 0.0], factor=[[3.0, 0.0], [0.0, 4.0]])
    assert float(bures_wasserstein(point(0.0, 3.0), point(4.0, 0.0))) == 5.0
    assert float(bures_wasserstein(point(0.0, 0.0), cloud)) == 5.0
    assert float(kl_divergence(point(1.0, 2.0), point(1.0, 2.0))) == 0.0
    assert float(kl_divergence(point(1.0, 2.0), point(1.0, 2.5))) == np.inf
    assert float(kl_divergence(point(0.0, 0.0), cloud)) == np.inf
    assert float(kl_divergence(cloud, point(0.0, 0.0))) == np.inf
    matrix, offset = transport_map(point(1.0, 1.0), point(2.0, 0.0))
    assert np.all(matrix == 0)
    assert np.array_equal(offset, [2.0, 0.0])


def test_different_ranks():
    """A line against the plane: the best plan projects, W₂² = (√a − 1)² + 1 along and across."""
    line, plane = gf.Gaussian([0, 0], factor=[[2.0], [0.0]]), gf.Gaussian([0, 0], np.eye(2))
    assert abs(float(bures_wasserstein(line, plane)) - np.sqrt(2)) < 1e-15
    assert float(kl_divergence(line, plane)) == np.inf
    assert float(kl_divergence(plane, line)) == np.inf


# ---------------------------------------------------------------- laws

GAUSSIANS = hnp.arrays(float, (D, D + 1), elements=st.floats(-10, 10, allow_subnormal=False))
RANKS = st.tuples(st.integers(0, D), st.integers(0, D), st.integers(0, D))


@settings(max_examples=100)
@given(GAUSSIANS, GAUSSIANS, GAUSSIANS, RANKS)
def test_w2_is_a_metric(x, y, z, ranks):
    (L1, m1), (L2, m2), (L3, m3) = (
        (with_rank(g[:, :D], rank), g[:, D]) for g, rank in zip((x, y, z), ranks, strict=True)
    )
    one_two, two_one = float(w2(L1, L2, m1, m2)), float(w2(L2, L1, m2, m1))
    assert np.isfinite(one_two)
    assert abs(one_two - two_one) < 1e-12
    assert float(w2(L1, L3, m1, m3)) <= one_two + float(w2(L2, L3, m2, m3)) + 1e-12
    lower = np.hypot(np.linalg.norm(m1 - m2), np.linalg.norm(L1) - np.linalg.norm(L2))  # Gelbrich
    assert one_two >= lower - 1e-12


@settings(max_examples=100)
@given(GAUSSIANS, GAUSSIANS, st.integers(0, 100))
def test_w2_moves_with_the_coordinates(x, y, seed):
    Q = orthogonal(np.random.default_rng(seed))
    L1, L2 = x[:, :D], y[:, :D]
    distance = float(w2(L1, L2))
    assert abs(float(w2(Q @ L1, Q @ L2)) - distance) < 1e-12
    for scale in (1e-140, 1e140):
        assert abs(float(w2(scale * L1, scale * L2)) - scale * distance) < 1e-12 * scale


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(1, D))
def test_kl_does_not_depend_on_coordinates(seed, rank):
    rng = np.random.default_rng(seed)
    L1 = with_rank(rng.normal(size=(D, D)), rank)
    inner = np.zeros((D, D))
    inner[:rank, :rank] = rng.normal(size=(rank, rank)) + 2 * np.eye(rank)
    L2, shift = L1 @ inner, L1 @ rng.normal(size=D)
    T = (orthogonal(rng) * [1.0, 3.0, 0.1]) @ orthogonal(rng)
    expected = float(kl(L1, L2, shift))
    assert 0 < expected < np.inf
    assert np.isclose(kl(T @ L1, T @ L2, T @ shift), expected, rtol=1e-8)
    units = np.array([1e-30, 1.0, 1e30])[:, None]
    assert np.isclose(kl(units * L1, units * L2, units[:, 0] * shift), expected, rtol=1e-8)


# ---------------------------------------------------------------- KL between singular Gaussians


def test_kl_on_a_common_line():
    line = np.outer([1.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    shift = np.array([1.0, 1.0, 0.0])
    expected = 0.5 * (0.25 - 1 + np.log(4) + 0.25)
    for scale in (1e-120, 1.0, 1e120):
        assert np.isclose(kl(scale * line, 2 * scale * line, scale * shift), expected, rtol=1e-14)
        assert float(kl(scale * line, 2 * scale * line, scale * np.array([1.0, 1.0, 1e-3]))) == np.inf
        assert float(kl(scale * line, 2 * scale * line, scale * np.array([1.0, 0.0, 0.0]))) == np.inf


@pytest.mark.parametrize(
    ("columns_1", "columns_2"),
    [
        ([[1, 0.5, 0]], [[1, 0, 0]]),
        ([[1, -1, 0]], [[1, 1, 0]]),
        ([[1, 0, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 0]]),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0]]),
    ],
)
@pytest.mark.parametrize("small", [1.0, 1e-10])
def test_kl_is_infinite_where_supports_differ(columns_1, columns_2, small):
    """Whatever the sizes: a tiny Gaussian, or a tiny last direction, is no less off the other's support."""
    fill = lambda columns: np.pad(np.array(columns, float).T, ((0, 0), (0, D - len(columns))))
    L1, L2 = fill(columns_1), fill(columns_2)
    last = np.where(np.arange(D) == len(columns_1) - 1, small, 1.0)
    assert float(kl(L1 * last, L2)) == np.inf
    assert float(kl(small * L1, L2)) == np.inf
    assert float(kl(L2, small * L1)) == np.inf
    assert np.all(jax.grad(kl)(L1 * last, L2) == 0)


def test_kl_of_very_different_sizes():
    assert np.isclose(kl(np.diag([1.0, 1e-20, 1.0]), np.eye(D)), 0.5 * (-1 + 2 * np.log(1e20)), rtol=1e-14)
    assert np.isclose(kl(1e-30 * np.eye(D), np.eye(D)), 1.5 * (-1 + 2 * np.log(1e30)), rtol=1e-14)


# ---------------------------------------------------------------- transport


@pytest.mark.parametrize(("rank_1", "rank_2"), [(3, 3), (3, 2), (3, 0), (2, 2), (2, 1), (1, 1)])
def test_transport_carries_at_least_cost(rank_1, rank_2):
    rng = rng_for("transport")
    L1, L2 = with_rank(rng.normal(size=(D, D)), rank_1), with_rank(rng.normal(size=(D, D)), rank_2)
    G = np.asarray(carry(L1, L2))
    assert np.allclose(G @ L1 @ L1.T @ G.T, L2 @ L2.T, atol=1e-12)
    assert abs(np.linalg.norm(G @ L1 - L1) - float(w2(L1, L2))) < 1e-12  # the cost of x ↦ Gx is the distance
    projector = L1 @ np.linalg.pinv(L1)
    assert np.allclose(G @ projector, G, atol=1e-12)
    if rank_1 == D:
        assert np.allclose(G, G.T, atol=1e-12)
        assert np.min(np.linalg.eigvalsh(G)) > -1e-12
        root = scipy.linalg.sqrtm(L1 @ L1.T)
        inverse = np.linalg.inv(root)
        if rank_2 == D:
            assert np.allclose(G, inverse @ scipy.linalg.sqrtm(root @ L2 @ L2.T @ root) @ inverse, atol=1e-10)


def test_transport_between_orthogonal_lines():
    """The source never looks towards the target, yet the map exists; zero columns must not hide it."""
    e = np.eye(3)
    pad = lambda column, place: np.outer(column, e[place])
    for place in range(3):
        G = np.asarray(carry(pad(e[0], 0), pad(2 * e[1], place)))
        assert np.allclose(np.abs(G), 2 * np.outer(e[1], e[0]), atol=1e-14)


def test_transport_between_planes_that_share_a_line():
    """Directions that do not see each other are matched with each other, not with the columns that carry nothing."""
    rng = rng_for("planes")
    for _ in range(5):
        basis, spread_1, spread_2 = orthogonal(rng), *rng.uniform(0.5, 2, (2, 2))
        L1 = np.pad(basis[:, [0, 1]] * spread_1, ((0, 0), (0, 1))) @ orthogonal(rng)
        L2 = np.pad(basis[:, [0, 2]] * spread_2, ((0, 0), (0, 1))) @ orthogonal(rng)
        G = np.asarray(carry(L1, L2))
        assert np.allclose(G @ L1 @ L1.T @ G.T, L2 @ L2.T, atol=1e-13)


def test_transport_within_a_plane_is_symmetric():
    rng = rng_for("plane")
    basis = orthogonal(rng)[:, :2]
    L1, L2 = (np.pad(basis @ rng.normal(size=(2, 2)), ((0, 0), (0, 1))) for _ in range(2))
    G = np.asarray(carry(L1, L2))
    assert np.allclose(G, G.T, atol=1e-13)


def test_barycentric_projection_where_no_map_exists():
    """From the line to the plane: the conditional mean of the target given the source."""
    line, plane = gf.Gaussian([1.0, 0.0], factor=[[2.0], [0.0]]), gf.Gaussian([0.0, 5.0], np.eye(2))
    image = transport_map(line, plane)(line)
    assert np.allclose(image.mean, [0.0, 5.0])
    assert np.allclose(image.covariance, [[1.0, 0.0], [0.0, 0.0]], atol=1e-15)


def test_transport_has_the_right_mean():
    rng = rng_for("mean")
    source, target = (gf.Gaussian(rng.normal(size=D), factor=rng.normal(size=(D, D))) for _ in range(2))
    image = transport_map(source, target)(source)
    assert np.allclose(image.mean, target.mean, atol=1e-13)
    assert float(bures_wasserstein(image, target)) < 1e-12


# ---------------------------------------------------------------- gradients


def central(function, path, h):
    return (float(function(path(h))) - float(function(path(-h)))) / (2 * h)


CASES = {
    "general": (np.array([[1.0, 0.2, 0.0], [0.3, 0.8, 0.1], [0.0, -0.4, 1.2]]), np.diag([0.5, 1.0, 2.0]) + 0.2),
    "identity": (np.eye(D), np.diag([0.5, 1.0, 2.0]) + 0.2),
    "both isotropic": (np.eye(D), 2 * np.eye(D)),
    "two equal eigenvalues": (np.diag([2.0, 2.0, 1.0]), np.diag([1.0, 1.0, 3.0])),
    "plane": (np.diag([1.0, 1.0, 0.0]), np.array([[2.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])),
    "line": (np.diag([1.0, 0.0, 0.0]), np.diag([2.0, 0.0, 0.0])),
    "badly scaled": (np.diag([1.0, 1e-9, 1e6]) + 1e-10 * np.ones((D, D)), np.diag([2.0, 3e-9, 1e6])),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("metric", [w2, kl], ids=["w2", "kl"])
def test_gradients_against_finite_differences(metric, name):
    """With respect to the factor and, traced, to the covariance; along paths that keep rank and support."""
    L1, L2 = CASES[name]
    rng = rng_for(name)
    shift = L2 @ rng.normal(size=D) / 2
    # Σ(t) = (I + tX) Σ (I + tX)ᵀ with X = L₁YL₁⁺: every direction within the support, in the units of the problem.
    X = L1 @ rng.normal(size=(D, D)) @ np.linalg.pinv(L1)
    S = L1 @ L1.T
    of_covariance = jax.jit(lambda S: metric(gf.Gaussian(np.zeros(D), S).factor, L2, shift))
    moved = lambda t: (np.eye(D) + t * X) @ L1
    slope = central(lambda L: metric(L, L2, shift), moved, 1e-5)
    scale = max(abs(slope), float(metric(L1, L2, shift)))
    by_factor = np.sum(np.asarray(jax.grad(metric)(L1, L2, shift)) * (X @ L1))
    assert abs(by_factor - slope) < 1e-8 * scale
    gradient = np.asarray(jax.grad(of_covariance)(S))
    assert np.all(np.isfinite(gradient))
    assert abs(np.sum(gradient * (X @ S + S @ X.T)) - slope) < 1e-8 * scale
    by_target = np.sum(np.asarray(jax.grad(metric, argnums=1)(L1, L2, shift)) * (X @ L2))
    if name != "badly scaled":
        target_path = lambda t: (np.eye(D) + t * X) @ L2
        assert abs(by_target - central(lambda L: metric(L1, L, shift), target_path, 1e-5)) < 1e-8 * scale


def test_gradients_with_respect_to_the_mean():
    L1, L2 = CASES["general"]
    shift = np.array([1.0, 2.0, -1.0])
    gradient = jax.grad(w2, argnums=2)(L1, L2, shift)
    assert np.allclose(gradient, shift / w2(L1, L2, shift), rtol=1e-14)
    gradient = jax.grad(kl, argnums=2)(L1, L2, shift)
    assert np.allclose(gradient, np.linalg.solve(L2 @ L2.T, shift), rtol=1e-12)


def test_gradient_of_squared_distance_is_identity_minus_transport():
    L1, L2 = CASES["general"]
    square = lambda S: w2(gf.Gaussian(np.zeros(D), S).factor, L2) ** 2
    gradient = np.asarray(jax.jit(jax.grad(square))(L1 @ L1.T))
    assert np.allclose(gradient, np.eye(D) - carry(L1, L2), atol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_gradients_at_equal_gaussians_are_zero(rank):
    rng = rng_for("zero")
    L, mean = with_rank(rng.normal(size=(D, D)), rank), rng.normal(size=D)
    for other in (L, L @ orthogonal(rng) if rank else L):
        for metric in (w2, kl):
            for gradient in jax.grad(metric, argnums=(0, 1, 2, 3))(L, other, mean, mean):
                assert np.max(np.abs(gradient)) < 1e-12, metric


def test_gradients_at_points_and_where_a_direction_is_missing_are_finite():
    for L1, L2 in ((np.zeros((D, D)), np.eye(D)), (np.eye(D), np.zeros((D, D))), (np.diag([1.0, 0, 0]), np.eye(D))):
        for metric in (w2, kl):
            for gradient in jax.grad(metric, argnums=(0, 1, 2, 3))(L1, L2, np.ones(D), np.zeros(D)):
                assert np.all(np.isfinite(gradient))
    nothing = np.zeros((D, 0))
    distance = lambda m: bures_wasserstein(gf.Gaussian(m, factor=nothing), gf.Gaussian(np.zeros(D), factor=nothing))
    assert np.allclose(jax.grad(distance)(np.array([3.0, 0.0, 4.0])), [0.6, 0.0, 0.8])
    assert np.all(jax.grad(distance)(np.zeros(D)) == 0)


@pytest.mark.parametrize("metric", [w2, kl], ids=["w2", "kl"])
def test_second_derivatives(metric):
    L1, L2 = CASES["general"]
    X, Y = np.random.default_rng(3).normal(size=(2, D, D))
    slope = lambda L: jnp.sum(jax.grad(metric)(L, L2) * X)
    exact = float(jnp.sum(jax.jit(jax.grad(slope))(L1) * Y))
    assert abs(exact - central(slope, lambda t: L1 + t * Y, 1e-5)) < 1e-8 * max(1.0, abs(exact))


def test_curvature_of_kl_at_equal_gaussians_is_the_fisher_information():
    """d²/dt² KL(N(μ + tm, Σ + tS) ‖ N(μ, Σ)) = ½ tr(Σ⁻¹SΣ⁻¹S) + mᵀΣ⁻¹m at t = 0."""
    rng = rng_for("fisher")
    L, X, m = rng.normal(size=(D, D)) + 2 * np.eye(D), rng.normal(size=(D, D)), rng.normal(size=D)
    along = lambda t: kl(L + t * X, L, t * m)
    curvature = float(jax.jit(jax.grad(jax.grad(along)))(0.0))
    precision = np.linalg.inv(L @ L.T)
    S = X @ L.T + L @ X.T
    assert np.isclose(curvature, 0.5 * np.trace(precision @ S @ precision @ S) + m @ precision @ m, rtol=1e-11)


def test_gradient_of_the_transport_map():
    L1, L2 = CASES["general"]
    X, Y = np.random.default_rng(4).normal(size=(2, D, D))
    score = lambda L: jnp.sum(carry(L, L2) * Y)
    exact = float(jnp.sum(jax.grad(score)(L1) * X))
    assert abs(exact - central(score, lambda t: L1 + t * X, 1e-5)) < 1e-8


# ---------------------------------------------------------------- batches, errors, the other measures


def test_vmap_agrees_with_a_loop():
    rng = rng_for("vmap")
    gaussians = [gf.Gaussian(rng.normal(size=D), factor=rng.normal(size=(D, rank))) for rank in (1, 3)]
    others = [gf.Gaussian(rng.normal(size=D), factor=rng.normal(size=(D, 3))) for _ in gaussians]
    batch = jax.jit(jax.vmap(bures_wasserstein))(gf.stack(gaussians), gf.stack(others))
    assert np.allclose(
        batch, [float(bures_wasserstein(a, b)) for a, b in zip(gaussians, others, strict=True)], rtol=1e-13
    )
    batch = jax.jit(jax.vmap(kl_divergence))(gf.stack(gaussians), gf.stack(others))
    assert np.allclose(batch, [float(kl_divergence(a, b)) for a, b in zip(gaussians, others, strict=True)], rtol=1e-12)
    assert list(np.isfinite(batch)) == [False, True]


@pytest.mark.parametrize("function", [bures_wasserstein, kl_divergence, transport_map, relative_mean_error])
def test_dimensions_must_agree(function):
    with pytest.raises(gf.InvalidInput, match=r"^g2: got dimension 3 beside 2; wanted two Gaussians of one dimension$"):
        function(gf.Gaussian([0, 0], np.eye(2)), gf.Gaussian([0, 0, 0], np.eye(3)))


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_relative_errors(scale):
    reference = gf.Gaussian(scale * np.array([3.0, 0.0]), factor=scale * np.array([[4.0], [0.0]]))
    computed = gf.Gaussian(scale * np.array([3.0, 1.0]), factor=scale * np.array([[0.0, 4.0], [1.0, 0.0]]))
    assert np.isclose(relative_covariance_error(computed, reference), 1 / 16, rtol=1e-14)
    assert np.isclose(relative_mean_error(computed, reference), 1 / 5, rtol=1e-14)
    assert float(relative_covariance_error(reference, reference)) == 0.0
    assert float(relative_mean_error(reference, reference)) == 0.0


def test_relative_errors_of_a_point_are_absolute():
    origin = gf.Gaussian([0, 0], factor=np.zeros((2, 1)))
    computed = gf.Gaussian([0.0, 2.0], factor=[[0.5], [0.0]])
    assert float(relative_covariance_error(computed, origin)) == 0.25
    assert float(relative_mean_error(computed, origin)) == 2.0
