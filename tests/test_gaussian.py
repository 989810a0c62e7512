"""The Gaussian: what it accepts, its rank, samples, and derivatives through a traced covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow.gaussian import Moments

D = 3


def covariance_of(rng, rank=D):
    L = rng.normal(size=(D, rank))
    return L @ L.T


# ---------------------------------------------------------------- construction


@pytest.mark.parametrize(
    ("mean", "covariance"),
    [
        ([1, 2], [[2, 0], [0, 3]]),
        ((1.0, 2.0), ((2.0, 0.0), (0.0, 3.0))),
        (np.array([1, 2]), np.array([[2, 0], [0, 3]], dtype=np.int32)),
        (jnp.array([1.0, 2.0]), jnp.array([[2.0, 0.0], [0.0, 3.0]])),
        (np.float32([1, 2]), np.float32([[2, 0], [0, 3]])),
    ],
)
def test_inputs_of_every_kind(mean, covariance):
    g = gf.Gaussian(mean, covariance)
    assert g.mean.dtype == g.factor.dtype == np.float64
    assert np.array_equal(g.mean, [1.0, 2.0])
    assert np.allclose(g.covariance, [[2.0, 0.0], [0.0, 3.0]], rtol=1e-15)
    assert (g.dim, g.rank, g.numerical_rank()) == (2, 2, 2)


@pytest.mark.parametrize(
    ("mean", "covariance", "text"),
    [
        (0.0, [[1.0]], "mean: got a scalar; wanted a vector of shape (d,)"),
        ([], np.zeros((0, 0)), "mean: got shape (0,); wanted a vector of shape (d,), d at least 1"),
        ([[0.0]], [[1.0]], "mean: got shape (1, 1)"),
        ([0.0, np.nan], np.eye(2), "mean: got 1 NaN or infinite entry"),
        ([0.0, 1j], np.eye(2), "mean: got complex numbers"),
        ([0.0], 1.0, "covariance: got a scalar; wanted a square matrix of shape (d, d)"),
        (
            [0.0, 0.0],
            [1.0, 2.0],
            "covariance: got shape (2,); wanted a square matrix of shape (d, d); write numpy.diag",
        ),
        ([0.0, 0.0], np.ones((2, 3)), "covariance: got shape (2, 3)"),
        (
            [0.0, 0.0],
            np.eye(3),
            "covariance: got shape (3, 3) beside a mean of length 2; wanted the dimension of the mean",
        ),
        ([0.0, 0.0], [[1, 0], [0]], "covariance: got rows of different lengths"),
        ([0.0, 0.0], [[1, np.inf], [np.inf, 1]], "covariance: got 2 NaN or infinite entries"),
        ([0.0, 0.0], [[1, 1j], [-1j, 1]], "covariance: got complex numbers"),
        ([0.0, 0.0], [[1, 0.5], [0.4, 1]], "covariance: got a matrix that differs from its transpose by 0.1 of its"),
        (
            [0.0, 0.0],
            [[1, 0], [0, -1e-6]],
            "covariance: got an indefinite matrix: its lowest eigenvalue is -1e-06, 1e-06",
        ),
        ([0.0, 0.0], None, "covariance: got neither of covariance and factor; wanted exactly one of the two"),
    ],
)
def test_refusals(mean, covariance, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        gf.Gaussian(mean, covariance)
    assert str(refusal.value).startswith(text)
    assert "\n" not in str(refusal.value)


def test_refused_factors():
    with pytest.raises(gf.InvalidInput, match=r"^factor: got shape \(2,\); wanted a matrix of shape \(d, r\)$"):
        gf.Gaussian.from_factor([0.0, 0.0], [1.0, 2.0])
    with pytest.raises(gf.InvalidInput, match=r"^factor: got shape \(3, 1\) beside a mean of length 2"):
        gf.Gaussian.from_factor([0.0, 0.0], np.ones((3, 1)))
    with pytest.raises(gf.InvalidInput, match=r"^covariance: got both of covariance and factor"):
        gf.Gaussian([0.0], [[1.0]], factor=[[1.0]])


@pytest.mark.parametrize("scale", [1e-300, 1e-18, 1.0, 1e18, 1e300])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_any_size_and_rank(scale, rank):
    S = covariance_of(np.random.default_rng(rank), rank) * scale
    g = gf.Gaussian(np.zeros(D), S)
    assert g.rank == g.numerical_rank() == rank
    assert np.max(np.abs(g.covariance / scale - S / scale)) < 1e-13
    assert np.array_equal(g.covariance, np.asarray(g.covariance).T)


def test_badly_scaled_coordinates_keep_their_rank_and_digits():
    units = np.array([1e-9, 1.0, 1e6])
    S = np.outer(units, units) * (np.eye(D) + 0.5)
    g = gf.Gaussian(np.zeros(D), S)
    assert g.rank == 3
    assert np.allclose(g.covariance / S, 1.0, rtol=1e-14)


def test_a_singular_covariance_in_single_precision():
    L = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    assert gf.Gaussian(np.zeros(5, np.float32), L @ L.T).rank == 2
    assert gf.Gaussian(np.zeros(5), jnp.asarray(L @ L.T)).rank == 2


def test_factor_is_kept_as_given():
    L = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]])
    g = gf.Gaussian.from_factor([0.0, 0.0], L)
    assert np.array_equal(g.factor, L)
    assert (g.rank, g.numerical_rank()) == (3, 2)
    assert np.array_equal(g.covariance, L @ L.T)
    point = gf.Gaussian.from_factor([1.0, 2.0], np.zeros((2, 0)))
    assert (point.rank, point.numerical_rank()) == (0, 0)
    assert np.array_equal(point.covariance, np.zeros((2, 2)))


def test_text():
    g = gf.Gaussian([1.0, 2.0], [[4.0, 0.0], [0.0, 9.0]])
    lines = str(g).splitlines()
    assert lines[0] == "Gaussian in dimension 2, rank 2"
    assert lines[1].split() == ["mean", "1", "2"]
    assert lines[2].split() == ["eigenvalues", "9", "4"]
    assert "none: a point" in str(gf.Gaussian.from_factor([1.0], np.zeros((1, 0))))
    assert "(8 in all)" in str(gf.Gaussian(np.zeros(8), np.eye(8)))
    seen = []
    jax.jit(lambda m: seen.append(str(gf.Gaussian(m, factor=jnp.eye(2)))) or m)(np.zeros(2))
    assert seen == ["Gaussian(mean (2,), factor (2, 2))"]


def test_is_a_pytree():
    g = gf.Gaussian([1.0, 2.0], np.eye(2))
    leaves, structure = jax.tree_util.tree_flatten(g)
    assert [leaf.shape for leaf in leaves] == [(2,), (2, 2)]
    again = jax.tree_util.tree_unflatten(structure, leaves)
    assert isinstance(again, gf.Gaussian)
    assert np.array_equal(again.factor, g.factor)
    doubled = jax.jit(lambda g: jax.tree_util.tree_map(lambda x: 2 * x, g))(g)
    assert np.array_equal(doubled.mean, [2.0, 4.0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(g)


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("n", "d"), [(50, 3), (3, 5)])
def test_from_samples_against_numpy(n, d, ddof):
    x = np.random.default_rng(n).normal(size=(n, d)) * np.geomspace(1e-6, 1e6, d) + 5.0
    g = gf.Gaussian.from_samples(x, ddof=ddof)
    deviations = np.std(x, axis=0)
    assert np.allclose(g.mean, x.mean(axis=0), rtol=1e-14)
    difference = np.asarray(g.covariance) - np.cov(x.T, ddof=ddof)
    # The smallest spread, 1e-6 around 5, has 10 digits in the samples.
    assert np.max(np.abs(difference / np.outer(deviations, deviations))) < 1e-9
    assert g.rank == min(n - 1, d)


def test_dependent_and_constant_columns():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 2))
    constant = np.full((40, 1), 0.1)
    columns = np.hstack([x, x[:, :1], x @ [[2.0], [-3.0]], constant, 1e6 + constant])
    g = gf.Gaussian.from_samples(columns)
    assert g.rank == 2
    assert np.allclose(g.covariance, np.cov(columns.T), atol=1e-13)
    assert np.all(g.factor[4:] == 0)
    offset = 1e8 + np.hstack([x, x @ [[1.0], [1.0]]])  # the sum is right to 1e-8 of the spread
    assert gf.Gaussian.from_samples(offset).rank == 2
    single = columns.astype(np.float32)
    assert gf.Gaussian.from_samples(single).rank == 2


def test_a_small_variance_beside_a_large_one_is_seen():
    x = np.random.default_rng(2).normal(size=(1000, 2))
    x = np.column_stack([x[:, 0], x[:, 0] + 1e-10 * x[:, 1]])
    g = gf.Gaussian.from_samples(x)
    assert g.rank == 2
    difference = np.array([1.0, -1.0])
    assert np.isclose(np.linalg.norm(difference @ np.asarray(g.factor)), np.std(x @ difference, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_samples_of_any_size(scale):
    x = np.random.default_rng(3).normal(size=(20, 2))
    g, unit = gf.Gaussian.from_samples(scale * x), gf.Gaussian.from_samples(x)
    assert np.allclose(np.abs(g.factor / scale), np.abs(unit.factor), rtol=1e-12)


def test_one_sample_is_a_point():
    g = gf.Gaussian.from_samples([[1, 2, 3]])
    assert np.array_equal(g.mean, [1.0, 2.0, 3.0])
    assert g.rank == 0


@pytest.mark.parametrize(
    ("samples", "options", "text"),
    [
        (np.zeros((0, 2)), {}, r"samples: got shape \(0, 2\); wanted an array of shape \(n, d\)"),
        (np.zeros((2, 0)), {}, r"samples: got shape \(2, 0\)"),
        ([1.0, 2.0], {}, r"samples: got shape \(2,\)"),
        ([[1.0, np.nan]], {}, "samples: got 1 NaN"),
        ([[1.0], [2.0]], {"ddof": 2}, "ddof: got 2; wanted an integer from 0 to n - 1"),
        ([[1.0], [2.0]], {"ddof": -1}, "ddof: got -1"),
    ],
)
def test_refused_samples(samples, options, text):
    with pytest.raises(gf.InvalidInput, match=f"^{text}"):
        gf.Gaussian.from_samples(samples, **options)


@pytest.mark.parametrize("n", [3, 10])
def test_derivative_through_samples(n):
    """Traced, with a constant column and so a singular covariance: first derivatives as those of numpy.cov."""
    x = np.random.default_rng(4).normal(size=(n, 3)) * [1.0, 2.0, 0.0]
    weights = np.random.default_rng(5).normal(size=(3, 3))
    through = jax.grad(lambda x: jnp.sum(gf.Gaussian.from_samples(x).covariance * weights))(x)
    direct = jax.grad(lambda x: jnp.sum(jnp.cov(x.T) * weights))(x)
    assert np.allclose(through, direct, atol=1e-13)


def test_statistics_of_draws():
    """An entry of the sample covariance has standard error √(Σii Σjj + Σij²)/√n; six of them are allowed."""
    rng = np.random.default_rng(6)
    S, mean, n = covariance_of(rng), rng.normal(size=D), 100_000
    x = np.asarray(gf.Gaussian(mean, S).sample(jax.random.PRNGKey(0), n))
    assert x.shape == (n, D)
    variances = np.diag(S)
    assert np.all(np.abs(x.mean(axis=0) - mean) < 6 * np.sqrt(variances / n))
    assert np.all(np.abs(np.cov(x.T) - S) < 6 * np.sqrt((np.outer(variances, variances) + S**2) / n))


def test_draws_stay_in_the_range():
    L, mean = np.random.default_rng(7).normal(size=(D, 1)), np.array([1.0, 2.0, 3.0])
    x = np.asarray(gf.Gaussian(mean, L @ L.T).sample(jax.random.PRNGKey(1), 50)) - mean
    direction = L[:, 0] / np.linalg.norm(L)
    assert np.max(np.abs(x - np.outer(x @ direction, direction))) < 1e-14 * np.max(np.abs(x)) * 10
    point = gf.Gaussian.from_factor(mean, np.zeros((D, 0)))
    assert np.array_equal(point.sample(jax.random.PRNGKey(1), 2), [mean, mean])
    with pytest.raises(gf.InvalidInput, match=r"^n: got -1"):
        point.sample(jax.random.PRNGKey(1), -1)


# ---------------------------------------------------------------- traced covariances


@jax.jit
def factor_of(S):
    return gf.Gaussian(jnp.zeros(D), S).factor


def test_vmap_of_the_constructor():
    rng = np.random.default_rng(8)
    covariances = np.stack([covariance_of(rng, rank) for rank in (0, 1, 2, 3)])
    means = rng.normal(size=(4, D))
    batch = jax.vmap(gf.Gaussian)(means, covariances)
    assert batch.mean.shape == (4, D)
    assert batch.factor.shape == (4, D, D)
    assert np.allclose(batch.covariance, covariances, atol=1e-13)
    one_by_one = [gf.Gaussian(m, S).numerical_rank() for m, S in zip(means, covariances, strict=True)]
    ranks = [gf.Gaussian(m, factor=L).numerical_rank() for m, L in zip(batch.mean, batch.factor, strict=True)]
    assert ranks == one_by_one == [0, 1, 2, 3]


@pytest.mark.parametrize("scale", [1e-280, 1.0, 1e280])
def test_traced_construction_agrees_with_the_concrete_one(scale):
    units = np.array([1e-9, 1.0, 1e6])
    S = scale * np.outer(units, units) * (np.eye(D) + 0.5)
    L = np.asarray(factor_of(S))
    assert np.allclose(L / np.sqrt(scale) @ L.T / np.sqrt(scale) / (S / scale), 1.0, rtol=1e-13)


def test_traced_indefinite_covariance_gives_nan_not_a_wrong_number():
    assert np.all(np.isnan(factor_of(np.diag([1.0, 1.0, -1e-6]))))
    assert np.all(np.isfinite(factor_of(np.diag([1.0, 1.0, -1e-16]))))


@pytest.mark.parametrize("S", [np.eye(D), np.diag([2.0, 2.0, 1.0]), np.diag([1.0, 1e-18, 1e12])], ids=str)
def test_derivative_through_a_traced_covariance(S):
    """The covariance of Gaussian(mean, Σ) is Σ, so its derivative is the identity: also at repeated eigenvalues."""
    rng = np.random.default_rng(9)
    deviations = np.sqrt(np.diag(S))
    weights = rng.normal(size=(D, D)) / np.outer(deviations, deviations)
    through = jax.grad(lambda S: jnp.sum(gf.Gaussian(jnp.zeros(D), S).covariance * weights))(S)
    assert np.allclose(through, (weights + weights.T) / 2, rtol=1e-12)


def test_derivative_at_a_singular_covariance():
    """Right along every direction in which Σ can move both ways; finite in all."""
    rng = np.random.default_rng(10)
    S, X, weights = covariance_of(rng, 2), rng.normal(size=(D, D)), rng.normal(size=(D, D))
    through = np.asarray(jax.grad(lambda S: jnp.sum(gf.Gaussian(jnp.zeros(D), S).covariance * weights))(S))
    direction = X @ S + S @ X.T
    assert np.all(np.isfinite(through))
    assert np.isclose(np.sum(through * direction), np.sum(weights * direction), rtol=1e-12)
    assert np.all(np.isfinite(jax.grad(lambda S: jnp.sum(gf.Gaussian(jnp.zeros(D), S).factor))(np.zeros((D, D)))))


def test_gradient_with_respect_to_mean_and_factor():
    value = lambda mean, factor: jnp.sum(gf.Gaussian(mean, factor=factor).covariance) + jnp.sum(mean**2)
    mean, factor = np.array([1.0, 2.0]), np.array([[1.0], [3.0]])
    by_mean, by_factor = jax.grad(value, argnums=(0, 1))(mean, factor)
    assert np.array_equal(by_mean, 2 * mean)
    assert np.array_equal(by_factor, np.full((2, 1), 8.0))


def test_moments_answer_as_a_gaussian_does():
    rng = np.random.default_rng(11)
    S = jnp.asarray(covariance_of(rng))
    moments, g = Moments(jnp.zeros(D), S), gf.Gaussian(np.zeros(D), S)
    assert moments.dim == g.dim
    assert np.allclose(moments.factor @ moments.factor.T, g.covariance, atol=1e-13)
    product = lambda chain: chain[0] if len(chain) == 1 else chain[0] @ chain[1]
    assert np.allclose(product(moments.covariance_chain), product(g.covariance_chain), atol=1e-13)
