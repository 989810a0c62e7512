"""Plots of one trajectory: eigenvalues, means, log det and covariance ellipses along depth."""

from __future__ import annotations

from typing import Any

import numpy as np

from gaussflow.errors import InvalidInput
from gaussflow.flow.trajectory import Trajectory

# Okabe and Ito's palette, distinguishable with every common colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLOW_UP_COLOUR = "#B00020"
MOST_LABELLED = len(COLOURS)
MOST_LINES = 24


def plot_eigenvalues(trajectory: Trajectory, ax: Any = None) -> Any:
    """Eigenvalues of Σ(t) on a logarithmic axis; zero eigenvalues of a singular Σ are not drawn, the title counts them."""
    ax = _axes(ax)
    ts, values = _check(trajectory), _eigenvalues(trajectory)
    d, r = trajectory.means.shape[1], values.shape[1]
    positive = np.where(values > 0, values, np.nan)
    _lines(ax, ts, positive, r"$\lambda_{%d}$", of="eigenvalues")
    ax.set_yscale("log")
    ax.set_ylabel(r"eigenvalues of $\Sigma(t)$")
    _keep_readable(ax, positive)
    if r == 0:
        ax.text(0.5, 0.5, "a point: no covariance", transform=ax.transAxes, ha="center")
    elif r < d:
        ax.set_title(f"rank {r} of {d}", fontsize="medium")
    return _finish(ax, trajectory)


def plot_means(trajectory: Trajectory, ax: Any = None) -> Any:
    """Coordinates of the mean μ(t)."""
    ax = _axes(ax)
    ts, means = _check(trajectory), np.asarray(trajectory.means)
    _lines(ax, ts, means, r"$\mu_{%d}$", of="coordinates")
    ax.set_ylabel(r"mean $\mu(t)$")
    if np.ptp(means) < 1e-9 * max(float(np.max(np.abs(means))), 1e-300) or not np.any(means):
        centre = float(np.mean(means))
        ax.set_ylim(centre - 0.5, centre + 0.5)
    if trajectory.blow_up is not None and np.max(np.abs(means)) > 100 * (np.median(np.abs(means)) + 1e-300):
        ax.set_yscale("symlog", linthresh=max(float(np.median(np.abs(means))), 1e-12))
    return _finish(ax, trajectory)


def plot_log_det(trajectory: Trajectory, ax: Any = None) -> Any:
    """log det Σ(t); for a singular Σ the sum of the logarithms of its non-zero eigenvalues."""
    ax = _axes(ax)
    ts, values = _check(trajectory), _eigenvalues(trajectory)
    with np.errstate(divide="ignore"):
        log_det = np.sum(np.log(values), axis=1) if values.shape[1] else np.full(len(ts), np.nan)
    ax.plot(ts, np.where(np.isfinite(log_det), log_det, np.nan), color=COLOURS[0])
    finite = log_det[np.isfinite(log_det)]
    if finite.size and np.ptp(finite) < 0.1:
        ax.set_ylim(finite.mean() - 0.5, finite.mean() + 0.5)
    singular = values.shape[1] < trajectory.means.shape[1]
    ax.set_ylabel(r"$\log\,\det\,\Sigma(t)$" + (" on its range" if singular else ""))
    return _finish(ax, trajectory)


def plot_ellipses(trajectory: Trajectory, ax: Any = None, *, count: int = 9, deviations: float = 1.0) -> Any:
    """Covariance ellipses along time, coloured by time, with the path of the mean.

    In dimension two these are the coordinates themselves. Above, the two leading principal directions of the final
    covariance; in dimension one a band of ``deviations`` standard deviations around the mean against time.
    """
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    ax = _axes(ax)
    ts, means = _check(trajectory), np.asarray(trajectory.means)
    factors = np.asarray(trajectory.factors)
    d = means.shape[1]
    if d == 1:
        spread = deviations * np.sqrt(np.sum(factors**2, axis=2))[:, 0]
        ax.fill_between(ts, means[:, 0] - spread, means[:, 0] + spread, color=COLOURS[0], alpha=0.25, linewidth=0)
        ax.plot(ts, means[:, 0], color=COLOURS[0])
        ax.set_ylabel(f"mean ± {deviations:g} standard deviation" + ("s" if deviations != 1 else ""))
        return _finish(ax, trajectory)
    basis = np.eye(2) if d == 2 else np.linalg.svd(factors[-1], full_matrices=True)[0][:, :2]
    for j in range(2):  # a principal direction has no sign: let its largest entry be positive
        basis[:, j] *= np.sign(basis[np.argmax(np.abs(basis[:, j])), j]) or 1.0
    path, shapes = means @ basis, np.einsum("di,ndr->nir", basis, factors)
    chosen = _spread_out(ts, trajectory, count)
    angle = np.linspace(0, 2 * np.pi, 181)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    norm, colours = Normalize(ts[0], ts[-1]), colormaps["cividis"]
    curves = []
    for i in chosen:
        left, values, _ = np.linalg.svd(shapes[i], full_matrices=False)
        half_axes = np.zeros((2, 2))
        half_axes[:, : len(values)] = left * values
        curves.append((path[i][:, None] + deviations * half_axes @ circle).T)
    ellipses = LineCollection(curves, colors=colours(norm(ts[chosen])), linewidths=1.3)
    ax.add_collection(ellipses)
    segments = np.stack([path[:-1], path[1:]], axis=1) if len(path) > 1 else np.empty((0, 2, 2))
    trail = LineCollection(list(segments), cmap=colours, norm=norm, linewidths=1.0, linestyles="solid")
    trail.set_array(ts[1:])
    ax.add_collection(trail)
    ax.plot(*path[0], "o", color=colours(0.0), markersize=4)
    ax.plot(*path[-1], "s", color=colours(1.0), markersize=4, markeredgecolor="0.3")
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="datalim")
    names = ("$x_1$", "$x_2$") if d == 2 else ("first principal direction", "second principal direction")
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    if len(ts) > 1:
        bar = ax.figure.colorbar(trail, ax=ax, fraction=0.05, pad=0.02)
        bar.set_label("time $t$")
    return ax


def overview(trajectory: Trajectory, *, title: str = "") -> Any:
    """A figure with all four plots, for a first look and for files; returns the matplotlib Figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.2), layout="constrained")
    axes = figure.subplots(2, 2)
    plot_eigenvalues(trajectory, axes[0, 0])
    plot_ellipses(trajectory, axes[0, 1])
    plot_means(trajectory, axes[1, 0])
    plot_log_det(trajectory, axes[1, 1])
    if title:
        figure.suptitle(title)
    return figure


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _check(trajectory: Trajectory) -> np.ndarray:
    if trajectory.ts.ndim != 1:
        raise InvalidInput("trajectory", got=f"a batch of shape {trajectory.ts.shape[:-1]}", wanted="one trajectory")
    if trajectory.ts.shape[0] == 0:
        raise InvalidInput("trajectory", got="no saved state", wanted="at least one saved state")
    return np.asarray(trajectory.ts)


def _eigenvalues(trajectory: Trajectory) -> np.ndarray:
    """The eigenvalues of Σ on its range, largest first, (n, r): from factors where there are any, for their accuracy."""
    if trajectory.saved_factors is not None:
        singular = np.linalg.svd(np.asarray(trajectory.saved_factors), compute_uv=False)
        return singular**2
    return np.maximum(np.linalg.eigvalsh(np.asarray(trajectory.saved_covariances))[:, ::-1], 0.0)


def _lines(ax: Any, ts: np.ndarray, values: np.ndarray, label: str, *, of: str) -> None:
    count = values.shape[1]
    if count <= MOST_LABELLED:
        for i in range(count):
            marker = "o" if len(ts) == 1 else None
            ax.plot(ts, values[:, i], color=COLOURS[i], label=label % (i + 1), marker=marker, linewidth=1.6)
        if count > 1:
            ax.legend(frameon=False, ncols=2 if count > 3 else 1, fontsize="small")
    elif count <= MOST_LINES:
        ax.plot(ts, values, color=COLOURS[0], linewidth=0.8, alpha=0.8)
        ax.set_title(f"{count} {of}", fontsize="medium")
    else:
        quantiles = np.nanquantile(values, [0.0, 0.25, 0.5, 0.75, 1.0], axis=1)
        ax.fill_between(ts, quantiles[0], quantiles[4], color=COLOURS[0], alpha=0.15, linewidth=0, label="range")
        ax.fill_between(ts, quantiles[1], quantiles[3], color=COLOURS[0], alpha=0.35, linewidth=0, label="middle half")
        ax.plot(ts, quantiles[2], color=COLOURS[0], linewidth=1.6, label="median")
        ax.legend(frameon=False, fontsize="small")
        ax.set_title(f"{count} {of}", fontsize="medium")


def _keep_readable(ax: Any, values: np.ndarray) -> None:
    """Do not let a vanishing eigenvalue push the others into a line: at most 20 decades are shown."""
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high = float(finite.min()), float(finite.max())
        if high / low > 1e20:
            ax.set_ylim(bottom=high * 1e-20)
        elif high / low < 1.1:  # a constant is a straight line, not its rounding errors
            ax.set_ylim(low / 1.5, high * 1.5)


def _finish(ax: Any, trajectory: Trajectory) -> Any:
    ax.set_xlabel("time $t$ (depth)")
    blow_up = trajectory.blow_up
    if blow_up is not None:
        time = float(blow_up.time)
        ax.axvline(time, color=BLOW_UP_COLOUR, linestyle="--", linewidth=1.2)
        left = time >= float(trajectory.ts[0])
        ax.annotate(
            f"blow-up\n$t^* = {time:.5g}$",
            xy=(time, 0.75),
            xycoords=("data", "axes fraction"),
            xytext=(-5 if left else 5, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            color=BLOW_UP_COLOUR,
            fontsize="small",
        )
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _spread_out(ts: np.ndarray, trajectory: Trajectory, count: int) -> np.ndarray:
    """Indices of about ``count`` states: even in time, but only while ellipses stay comparable in a blow-up."""
    usable = np.arange(len(ts))
    if trajectory.blow_up is not None:
        size = np.sqrt(np.sum(np.asarray(trajectory.factors) ** 2, axis=(1, 2)))
        usable = usable[size <= 8 * max(size[0], 1e-300)]
    targets = np.linspace(ts[usable[0]], ts[usable[-1]], min(count, len(usable)))
    return np.unique([int(usable[np.argmin(np.abs(ts[usable] - t))]) for t in targets])
