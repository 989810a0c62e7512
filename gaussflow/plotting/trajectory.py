"""Plots of one trajectory: eigenvalues, means, log det and covariance ellipses along depth."""

from __future__ import annotations

from typing import Any

import numpy as np

from gaussflow.errors import InvalidInput
from gaussflow.flow.trajectory import Trajectory
from gaussflow.linalg import rank_tolerance

# Okabe and Ito's palette, distinguishable with every common colour blindness. Dashes differ as well, so that curves
# that coincide are all seen, also in print without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (8, 3)))
BLOW_UP_COLOUR = "#7A0019"
MOST_LABELLED = len(COLOURS)
MOST_LINES = 24
MOST_DECADES = 16


def plot_eigenvalues(trajectory: Trajectory, ax: Any = None) -> Any:
    """Eigenvalues of Σ(t) on a logarithmic axis.

    Zero eigenvalues of a singular Σ are not drawn, the title counts the others. A blow-up time is marked.
    """
    ax = _axes(ax)
    ts, values = _times(trajectory), _eigenvalues(trajectory)
    d, r = trajectory.means.shape[1], values.shape[1]
    ax.set_yscale("log")
    if r == 0:
        _say_point(ax)
    else:
        _curves(ax, ts, values, r"$\lambda_{%d}$")
        _limit_decades(ax, values)
    if r < d:
        ax.set_title(f"rank {r} of {d}", fontsize="medium")
    elif r > MOST_LABELLED:
        ax.set_title(f"{r} eigenvalues", fontsize="medium")
    ax.set_ylabel(r"eigenvalues of $\Sigma(t)$")
    return _along_time(ax, trajectory)


def plot_means(trajectory: Trajectory, ax: Any = None) -> Any:
    """Coordinates of the mean μ(t); on a symmetric logarithmic axis where they run away in a blow-up."""
    ax = _axes(ax)
    ts, means = _times(trajectory), np.asarray(trajectory.means)
    _curves(ax, ts, means, r"$\mu_{%d}$")
    if means.shape[1] > MOST_LABELLED:
        ax.set_title(f"{means.shape[1]} coordinates", fontsize="medium")
    ax.set_ylabel(r"mean $\mu(t)$")
    typical = float(np.max(np.abs(means[0]), initial=0.0)) or float(
        np.median(np.max(np.abs(means), axis=1, initial=0.0))
    )
    if typical > 0 and np.max(np.abs(means)) > 50 * typical:
        ax.set_yscale("symlog", linthresh=typical)
    else:
        _least_range(ax)
    return _along_time(ax, trajectory)


def plot_log_det(trajectory: Trajectory, ax: Any = None) -> Any:
    """log det Σ(t); for a singular Σ the sum of the logarithms of its non-zero eigenvalues."""
    ax = _axes(ax)
    ts, values = _times(trajectory), _eigenvalues(trajectory)
    d, r = trajectory.means.shape[1], values.shape[1]
    if r == 0:
        _say_point(ax)
    else:
        log_det = np.sum(np.log(values), axis=1)
        ax.plot(ts, log_det, color=COLOURS[0], linewidth=1.6, marker="o" if len(ts) == 1 else None)
        _least_range(ax)
    ax.set_ylabel(r"$\log\,\det\,\Sigma(t)$" if r == d else r"log pseudo-determinant of $\Sigma(t)$")
    remarks = [f"rank {r} of {d}"] if r < d else []
    if np.isnan(values).any():
        remarks.append("until an eigenvalue drowns in rounding")
    ax.set_title(", ".join(remarks), fontsize="medium")
    return _along_time(ax, trajectory)


def plot_ellipses(trajectory: Trajectory, ax: Any = None, *, count: int = 10, deviations: float = 2.0) -> Any:
    """Covariance ellipses of ``deviations`` standard deviations, coloured by time, with the path of the mean.

    In dimension two the axes are the coordinates. Above, they are the two leading principal directions of the
    time-averaged covariance (each state weighted alike, whatever its size). In dimension one it is a band around the
    mean against time. Before a blow-up, only states of comparable size are drawn.
    """
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import Normalize

    ax = _axes(ax)
    ts, means = _times(trajectory), np.asarray(trajectory.means)
    d = means.shape[1]
    if d == 1:
        return _band(ax, trajectory, deviations)
    chosen, last = _ellipse_times(trajectory, count)
    basis, shares = (np.eye(2), None) if d == 2 else _principal_directions(trajectory, chosen)
    path = means[: last + 1] @ basis
    early, late = sorted((float(ts[0]), float(ts[last])))
    norm, colours = Normalize(early, late), colormaps["cividis"]
    angle = np.linspace(0.0, 2.0 * np.pi, 181)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    curves = []
    for i in chosen:
        variances, directions = np.linalg.eigh(_projected(trajectory, int(i), basis))
        half_axes = directions * np.sqrt(np.maximum(variances, 0.0))  # rounding below zero draws as a line
        curves.append((path[i][:, None] + deviations * half_axes @ circle).T)
    tints = colours(norm(ts[chosen]))
    ax.add_collection(PolyCollection(curves, facecolors=tints, alpha=0.07, linewidths=0))
    ax.add_collection(LineCollection(curves, colors=tints, linewidths=1.4))
    segments = np.stack([path[:-1], path[1:]], axis=1) if len(path) > 1 else np.empty((0, 2, 2))
    trail = LineCollection(list(segments), cmap=colours, norm=norm, linewidths=1.2)
    trail.set_array(ts[1 : last + 1])
    ax.add_collection(trail)
    ax.plot(*path[0], "o", color=colours(norm(ts[0])), markersize=5)
    ax.plot(*path[-1], "s", color=colours(norm(ts[last])), markersize=5, markeredgecolor="0.3")
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="datalim")
    if shares is None:
        ax.set_xlabel("$x_1$")
        ax.set_ylabel("$x_2$")
    else:
        ax.set_xlabel(f"first principal direction ({shares[0]:.0%} of variance)")
        ax.set_ylabel(f"second principal direction ({shares[1]:.0%})")
    ax.set_title(f"{deviations:g}σ ellipses" + (" and path of the mean" if len(path) > 1 else ""), fontsize="medium")
    if len(path) > 1:
        bar = ax.figure.colorbar(trail, ax=ax, fraction=0.05, pad=0.02)
        bar.set_label("time $t$ (depth)")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_trajectory(trajectory: Trajectory, *, title: str = "") -> Any:
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


def _band(ax: Any, trajectory: Trajectory, deviations: float) -> Any:
    """Mean ± deviations against time, in dimension one."""
    ts, means = _times(trajectory), np.asarray(trajectory.means)[:, 0]
    identity = np.eye(1)
    variances = np.array([_projected(trajectory, i, identity)[0, 0] for i in range(len(ts))])
    spread = deviations * np.sqrt(np.maximum(variances, 0.0))
    label = f"{deviations:g} standard deviation" + ("s" if deviations != 1 else "")
    if len(ts) == 1:
        ax.errorbar(ts, means, yerr=spread, color=COLOURS[0], marker="o", capsize=3)
    else:
        ax.fill_between(ts, means - spread, means + spread, color=COLOURS[0], alpha=0.25, linewidth=0)
        ax.plot(ts, means, color=COLOURS[0], linewidth=1.6)
    if trajectory.blow_up is not None:
        _, last = _ellipse_times(trajectory, 2)
        low, high = (means - spread)[: last + 1].min(), (means + spread)[: last + 1].max()
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.set_ylabel(f"mean ± {label}")
    return _along_time(ax, trajectory)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _times(trajectory: Trajectory) -> np.ndarray:
    if trajectory.ts.ndim != 1:
        raise InvalidInput("trajectory", got=f"a batch of shape {trajectory.ts.shape[:-1]}", wanted="one trajectory")
    if trajectory.ts.shape[0] == 0:
        raise InvalidInput("trajectory", got="no saved state", wanted="at least one saved state")
    return np.asarray(trajectory.ts)


def _eigenvalues(trajectory: Trajectory) -> np.ndarray:
    """The eigenvalues of Σ on its range, largest first, (n, r); what drowns in rounding is NaN.

    From factors where there are any: they resolve small eigenvalues to full relative precision.
    """
    if trajectory.saved_factors is not None:
        factors = np.asarray(trajectory.saved_factors)
        values = np.linalg.svd(factors, compute_uv=False) ** 2
        noise = rank_tolerance(max(factors.shape[1:])) ** 2
    else:
        covariances = np.asarray(trajectory.saved_covariances)
        values = np.linalg.eigvalsh(covariances)[:, ::-1]
        noise = rank_tolerance(covariances.shape[-1])
    largest = np.max(values, axis=1, initial=0.0, keepdims=True)
    values = np.where(values > noise * largest, values, np.nan)
    return values[:, np.isfinite(values).any(axis=0)]


def _curves(ax: Any, ts: np.ndarray, values: np.ndarray, label: str) -> None:
    """Labelled curves if there are few, thin ones if there are more, and the spread of them if there are many."""
    count = values.shape[1]
    marker = "o" if len(ts) == 1 else None
    if count <= MOST_LABELLED:
        for i in range(count):
            style = {"color": COLOURS[i], "linestyle": DASHES[i], "marker": marker, "linewidth": 1.6}
            ax.plot(ts, values[:, i], label=label % (i + 1), **style)
        if count > 1:
            ax.legend(frameon=False, ncols=2 if count > 3 else 1, fontsize="small", handlelength=2.4)
    elif count <= MOST_LINES or len(ts) == 1:
        ax.plot(ts, values, color=COLOURS[0], linewidth=0.8, alpha=0.8, marker=marker)
    else:
        low, first, median, third, high = np.nanquantile(values, [0.0, 0.25, 0.5, 0.75, 1.0], axis=1)
        shade = {"color": COLOURS[0], "linewidth": 0}
        ax.fill_between(ts, low, high, alpha=0.15, label="range", **shade)
        ax.fill_between(ts, first, third, alpha=0.35, label="middle half", **shade)
        ax.plot(ts, median, color=COLOURS[0], linewidth=1.6, label="median")
        ax.legend(frameon=False, fontsize="small")


def _say_point(ax: Any) -> None:
    from matplotlib.ticker import NullLocator

    ax.text(0.5, 0.5, "a point: no covariance", transform=ax.transAxes, ha="center")
    ax.yaxis.set_major_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())


def _limit_decades(ax: Any, values: np.ndarray) -> None:
    """Do not let a vanishing eigenvalue push the others into one line, nor rounding of a constant one fill the axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = np.log10(np.nanmin(values)), np.log10(np.nanmax(values))
    low = max(low, high - MOST_DECADES)
    margin = max(0.05 * (high - low), 0.15 - 0.5 * (high - low))
    ax.set_ylim(10.0 ** max(low - margin, -307.0), 10.0 ** min(high + margin, 307.0))
    if high - low < 2.0 and low > -3.0 and high < 4.0:  # few powers of ten inside: write the numbers out
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high - low > 0.5 else range(1, 10)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())


def _least_range(ax: Any) -> None:
    """Keep an axis from zooming into the rounding of a constant."""
    low, high = ax.get_ylim()
    least = 1e-6 * max(abs(low), abs(high), 1e-6)
    if high - low < least:
        middle = 0.5 * (low + high)
        half = 0.05 * (abs(middle) if abs(middle) > 1e-6 else 1.0)
        ax.set_ylim(middle - half, middle + half)


def _along_time(ax: Any, trajectory: Trajectory) -> Any:
    """What every plot against time has: its axis, and the blow-up marked."""
    ax.set_xlabel("time $t$ (depth)")
    ax.spines[["top", "right"]].set_visible(False)
    blow_up = trajectory.blow_up
    ends = [float(trajectory.ts[0]), float(trajectory.ts[-1])] + ([float(blow_up.time)] if blow_up is not None else [])
    if min(ends) < max(ends):
        margin = 0.04 * (max(ends) - min(ends))
        ax.set_xlim(min(ends) - margin, max(ends) + margin)
    if blow_up is None:
        return ax
    time = float(blow_up.time)
    ax.axvline(time, color=BLOW_UP_COLOUR, linestyle=(0, (4, 2)), linewidth=1.2)
    forward = time >= float(trajectory.ts[0])
    ax.annotate(
        f"blow-up\n$t^* = {time:.5g}$",
        xy=(time, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(-6 if forward else 6, 0),
        textcoords="offset points",
        ha="right" if forward else "left",
        va="top",
        color=BLOW_UP_COLOUR,
        fontsize="small",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )
    return ax


def _projected(trajectory: Trajectory, index: int, basis: np.ndarray) -> np.ndarray:
    """The covariance of the projection on ``basis`` at one saved time; a large Σ is never formed for it."""
    if trajectory.saved_factors is not None:
        thin = basis.T @ np.asarray(trajectory.saved_factors[index])
        return thin @ thin.T
    return basis.T @ np.asarray(trajectory.covariances[index]) @ basis


def _sizes(trajectory: Trajectory) -> np.ndarray:
    """The root of tr Σ at every saved time."""
    if trajectory.saved_factors is not None:
        return np.sqrt(np.sum(np.asarray(trajectory.saved_factors) ** 2, axis=(1, 2)))
    return np.sqrt(np.trace(np.asarray(trajectory.saved_covariances), axis1=1, axis2=2))


def _ellipse_times(trajectory: Trajectory, count: int) -> tuple[np.ndarray, int]:
    """Indices of about ``count`` states, closer in time where the state changes faster, and of the last one drawn."""
    ts, means = np.asarray(trajectory.ts), np.asarray(trajectory.means)
    sizes = _sizes(trajectory)
    last = len(ts) - 1
    if trajectory.blow_up is not None:
        small = np.flatnonzero(sizes > 6.0 * max(float(sizes[0]), 1e-300))
        last = int(small[0]) - 1 if small.size else last
    if last < 1:
        return np.array([0]), 0
    scale = float(np.max(sizes[: last + 1])) or 1.0
    moved = np.linalg.norm(np.diff(means[: last + 1], axis=0), axis=1) / scale
    grown = np.abs(np.diff(sizes[: last + 1])) / scale
    change = moved + grown
    share = np.abs(np.diff(ts[: last + 1])) / abs(ts[last] - ts[0])
    total = float(change.sum())
    pace = np.concatenate([[0.0], np.cumsum(share + (change / total if total > 0 else share))])
    targets = np.linspace(0.0, pace[-1], min(count, last + 1))
    return np.unique([int(np.argmin(np.abs(pace - target))) for target in targets]), last


def _principal_directions(trajectory: Trajectory, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two leading directions (d, 2) of the average of Σ / tr Σ over some states, and their shares of it."""
    d = trajectory.means.shape[1]
    scales = _sizes(trajectory)[chosen]
    scales = np.where(scales > 0, scales, 1.0)
    if trajectory.saved_factors is not None:
        factors = np.asarray(trajectory.saved_factors)[chosen] / scales[:, None, None]
        stacked = np.moveaxis(factors, 0, 1).reshape(d, -1)
        if stacked.shape[1] < d:  # thin: work in its few columns
            left, values, _ = np.linalg.svd(stacked, full_matrices=False)
            vectors, variances = left, values**2
        else:
            variances, vectors = np.linalg.eigh(stacked @ stacked.T)
    else:
        average = np.sum(np.asarray(trajectory.saved_covariances)[chosen] / scales[:, None, None] ** 2, axis=0)
        variances, vectors = np.linalg.eigh(average)
    order = np.argsort(variances)[::-1][:2]
    basis, total = vectors[:, order], float(np.sum(variances))
    shares = variances[order] / total if total > 0 else np.zeros(len(order))
    if basis.shape[1] < 2:  # rank one (or a point): any direction beside it
        spare = np.linalg.qr(np.concatenate([basis, np.eye(d)[:, : 2 - basis.shape[1] + 1]], axis=1))[0]
        basis, shares = spare[:, :2], np.append(shares, np.zeros(2 - len(shares)))
    # A principal direction has no sign: let its largest entry be positive.
    largest = basis[np.argmax(np.abs(basis), axis=0), np.arange(2)]
    return basis * np.where(largest < 0, -1.0, 1.0), shares
