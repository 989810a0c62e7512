"""The command ``gaussflow``. Only typer and the standard library load at module level, so that --help answers at once."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Gaussian mean-field Transformers: simulate how a Gaussian of tokens flows through depth.",
    epilog="Example: gaussflow simulate examples/iris.toml --plot --out results",
)


def _version(asked: bool) -> None:
    if asked:
        from gaussflow import __version__

        print(f"gaussflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(help="A problem file (TOML).", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder for summary.json, trajectory.npz and figures.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    plot: Annotated[bool, typer.Option("--plot", help='Draw figures into --out ("results" if not given).')] = False,
    t1: Annotated[float | None, typer.Option(help="End time, instead of the file's.", show_default=False)] = None,
    points: Annotated[int | None, typer.Option(help="How many times to save.", show_default=False)] = None,
    method: Annotated[
        str | None, typer.Option(help="auto, covariance, factor, exact or stiff.", show_default=False)
    ] = None,
    rtol: Annotated[float | None, typer.Option(help="Relative accuracy aimed at.", show_default=False)] = None,
    error: Annotated[bool, typer.Option("--error", help="Estimate the error, at the cost of a second run.")] = False,
) -> None:
    """Integrate a problem file and say what became of the Gaussian.

    Exit status: 0 if answered (a blow-up is an answer), 1 if the integration failed, 2 for bad input.

    Example: gaussflow simulate examples/blow_up.toml --json
    """
    started = time.perf_counter()
    with _progress("loading", enabled=not json) as say:
        import jax

        jax.config.update("jax_enable_x64", True)
        from gaussflow.files.problem import load_problem
        from gaussflow.files.results import prepare_folder, to_json, write_json, write_trajectory, write_whole
        from gaussflow.flow.simulate import simulate as run
        from gaussflow.flow.trajectory import Outcome

        problem = load_problem(file)
        changes = {"t1": t1, "points": points, "method": method, "rtol": rtol, "error": error or None}
        options = problem.simulate | {key: value for key, value in changes.items() if value is not None}
        if t1 is not None or points is not None:
            options.pop("ts", None)
        folder = prepare_folder(out or "results") if out is not None or plot else None
        say("integrating")
        trajectory = run(problem.parameters, problem.initial, **options)
        from gaussflow.files.summary import summary_lines, summary_of

        content = summary_of(problem, trajectory, seconds=time.perf_counter() - started)
        written = []
        if folder is not None:
            say("writing results")
            write_json(folder / "summary.json", content)
            write_trajectory(folder / "trajectory.npz", trajectory)
            written += ["summary.json", "trajectory.npz"]
        if plot and folder is not None:
            say("drawing")
            from gaussflow.plotting import overview

            figure = overview(trajectory, title=problem.title)
            for name in ("trajectory.png", "trajectory.pdf"):
                write_whole(folder / name, lambda path: figure.savefig(path, dpi=160))
                written.append(name)
    if json:
        print(to_json(content))
    else:
        print("\n".join(summary_lines(content)))
        if written:
            print(f"{'written':<14}{folder}: {', '.join(written)}")
    if bool(trajectory.outcome == Outcome.FAILED):
        raise typer.Exit(1)


@contextmanager
def _progress(first: str, *, enabled: bool) -> Any:
    """Tell a person at a terminal, from the third second on, what is going on and for how long; silent in pipes."""
    phase, done = [first], threading.Event()
    active = enabled and sys.stderr.isatty()

    def tick() -> None:
        started = time.monotonic()
        while not done.wait(1.0):
            elapsed = time.monotonic() - started
            if elapsed >= 2.0:
                print(f"\r{phase[0]} ... {elapsed:.0f} s\x1b[K", end="", file=sys.stderr, flush=True)
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    if active:
        thread.start()
    try:
        yield lambda text: phase.__setitem__(0, text)
    finally:
        done.set()
        if active:
            thread.join()


def main(arguments: list[str] | None = None) -> None:
    """Run the command; every refusal is one line on standard error and exit status 2, never a traceback."""
    from gaussflow.errors import GaussflowError, NumericalFailure

    try:
        app(args=arguments, prog_name="gaussflow")
    except GaussflowError as error:
        print(f"gaussflow: {error}", file=sys.stderr)
        raise SystemExit(1 if isinstance(error, NumericalFailure) else 2) from None
    except KeyboardInterrupt:
        print("gaussflow: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except MemoryError:
        print("gaussflow: out of memory; a factor of low rank, or fewer points, needs less", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
