"""The command ``gaussflow``. Only typer and the standard library load at module level: --help answers at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
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

DEFAULT_FOLDER = Path("results")
SILENT_SECONDS = 2.0
"""How long a run stays silent at a terminal before it tells what it is doing."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 answered, 1 the computation failed, 2 bad input, 130 interrupted."""
    app(args=arguments, prog_name="gaussflow")


def _version(asked: bool) -> bool:
    if asked:
        from gaussflow import __version__

        print(f"gaussflow {__version__}")
        raise typer.Exit
    return asked


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
        Path | None,
        typer.Option(help="Folder for summary.json, trajectory.npz and figures; made if need be.", show_default=False),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help=f'Draw trajectory.png and .pdf into --out ("{DEFAULT_FOLDER}" if not given).')
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    t1: Annotated[float | None, typer.Option(help="End time, instead of the file's.", show_default=False)] = None,
    points: Annotated[int | None, typer.Option(help="How many states to save.", show_default=False)] = None,
    method: Annotated[
        str | None, typer.Option(help="auto, covariance, factor, exact or stiff.", show_default=False)
    ] = None,
    rtol: Annotated[
        float | None, typer.Option(help="Relative accuracy aimed at; 1e-8 by default.", show_default=False)
    ] = None,
    error: Annotated[bool, typer.Option("--error", help="Estimate the error, at the cost of a second run.")] = False,
) -> None:
    """Integrate a problem file and say what became of the Gaussian.

    Exit status: 0 if answered (a blow-up is an answer), 1 if the integration failed, 2 for bad input.

    Example: gaussflow simulate examples/blow_up.toml --json
    """
    started = time.perf_counter()
    with _refusals_in_one_line(), _progress("starting") as say:
        _double_precision()
        from gaussflow.files.problem import load_problem
        from gaussflow.files.results import prepare_folder, to_json, write_results
        from gaussflow.files.summary import summary_lines, summary_of

        problem = load_problem(file)
        given = {"t1": t1, "points": points, "method": method, "rtol": rtol, "error": error or None}
        changes = {name: value for name, value in given.items() if value is not None}
        options = problem.simulate | changes
        if "t1" in changes or "points" in changes:
            options.pop("ts", None)  # the file's save times belong to the file's interval
        folder = prepare_folder(out or DEFAULT_FOLDER) if out is not None or plot else None
        say("integrating")
        with _interruptible():
            trajectory = _run(problem, options, changes)
        content = summary_of(problem, trajectory, options=options, seconds=time.perf_counter() - started)
        written: list[str] = []
        if folder is not None:
            say("drawing and writing" if plot else "writing")
            figures = _figures(trajectory, problem.title) if plot else {}
            written = write_results(folder, summary=content, trajectory=trajectory, figures=figures)
    if json:
        print(to_json(content))
    else:
        print("\n".join(summary_lines(content)))
        if written:
            print(f"  {'written':<14}{folder}: {', '.join(written)}")
    if content["outcome"] == "failed":
        raise typer.Exit(1)


def _double_precision() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)


def _run(problem: Any, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """simulate(), its refusals naming the option or the key of the file that they are about."""
    from gaussflow.errors import InvalidInput
    from gaussflow.flow.simulate import simulate as run

    try:
        return run(problem.parameters, problem.initial, **options)
    except InvalidInput as error:
        name = error.argument
        if name in changes:
            place = f"--{name}"
        else:
            place = f"{problem.source}: simulate.{name}" if name in options else f"{problem.source}: {name}"
        raise InvalidInput(place, got=error.got, wanted=error.wanted, fix=error.fix) from error


def _figures(trajectory: Any, title: str) -> dict[str, Callable[[Path], None]]:
    from gaussflow.plotting import plot_trajectory

    figure = plot_trajectory(trajectory, title=title)
    return {
        "trajectory.png": lambda path: figure.savefig(path, dpi=160),
        # Without a date, the same run gives the same file.
        "trajectory.pdf": lambda path: figure.savefig(path, metadata={"CreationDate": None}),
    }


@contextmanager
def _refusals_in_one_line() -> Iterator[None]:
    """Every refusal is one line on standard error and an exit status, never a traceback."""
    from gaussflow.errors import GaussflowError, NumericalFailure

    try:
        yield
    except GaussflowError as error:
        text, status = str(error), 1 if isinstance(error, NumericalFailure) else 2
    except KeyboardInterrupt:
        text, status = "interrupted", 130
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):  # what XLA says of memory
            raise
        text, status = "out of memory; a factor of low rank, or fewer points, needs less", 2
    else:
        return
    print(f"gaussflow: {' '.join(text.split())}", file=sys.stderr)
    raise typer.Exit(status)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a run at once: Python would wait for the compiled code to return, which can be minutes.

    Only for phases that write nothing, because nothing is tidied up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread alone
        return
    signals, sent = os.pipe()
    os.set_blocking(sent, False)

    def watch() -> None:
        while number := os.read(signals, 1):
            if number[0] == signal.SIGINT:
                clear = "\r\x1b[K" if sys.stderr.isatty() else ""
                print(f"{clear}gaussflow: interrupted", file=sys.stderr, flush=True)
                os._exit(130)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    handler = signal.signal(signal.SIGINT, lambda number, frame: None)
    earlier = signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        signal.signal(signal.SIGINT, handler)
        os.close(sent)
        watcher.join()
        os.close(signals)


@contextmanager
def _progress(phase: str) -> Iterator[Callable[[str], None]]:
    """Tell a person at a terminal, after a while, what is going on and for how long; silent in pipes."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    current, done = [phase], threading.Event()

    def tick() -> None:
        started, shown = time.monotonic(), ""
        while not done.wait(0.25):
            elapsed = time.monotonic() - started
            line = f"{current[0]} ... {elapsed:.0f} s"
            if elapsed >= SILENT_SECONDS and line != shown:
                print(f"\r\x1b[2m{line}\x1b[0m\x1b[K", end="", file=sys.stderr, flush=True)
                shown = line
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield lambda text: current.__setitem__(0, text)
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
