"""The public names, what importing costs, and which room may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gaussflow as gf

PACKAGE = Path(gf.__file__).parent

# Each room imports only rooms above it; rooms that come later in the project have their place already.
ROOMS = ["errors", "arrays", "linalg", "gaussian", "metrics", "layers", "flow", "reachability", "stability", "tokens",
         "sweep", "icl", "files", "plotting", "claims", "cli"]  # fmt: skip


def modules():
    """Dotted name, inside the package, and syntax tree of every module but the package's own front door."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            yield ".".join(parts), ast.parse(path.read_text(encoding="utf-8"))


MODULES = dict(modules())


def imports(tree, *, only_at_import):
    """Modules of the package that a module imports; ``only_at_import`` leaves out imports inside functions."""
    pending, found = list(tree.body), set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.split(".")[0] == "gaussflow":
            inside = node.module.removeprefix("gaussflow").lstrip(".")
            for alias in node.names:
                dotted = f"{inside}.{alias.name}".lstrip(".")
                found.add(dotted if dotted in MODULES else inside)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
        elif isinstance(node, ast.Import):
            found |= {n.name.removeprefix("gaussflow.") for n in node.names if n.name.split(".")[0] == "gaussflow"}
        elif not (only_at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            pending.extend(ast.iter_child_nodes(node))
    return found - {""}


@pytest.mark.parametrize("module", MODULES)
def test_each_room_imports_only_rooms_above_it(module):
    room = module.split(".")[0]
    assert room in ROOMS, f"{room} has no place in the house"
    for other in imports(MODULES[module], only_at_import=False):
        target = other.split(".")[0]
        assert target in ROOMS, other
        assert target == room or ROOMS.index(target) < ROOMS.index(room), f"{module} imports {other}"


def test_there_are_no_circles():
    graph = {module: imports(tree, only_at_import=True) for module, tree in MODULES.items()}
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        path.append(module)
        for other in sorted(graph.get(module, ())):
            visit(other)
        done.add(path.pop())

    for module in graph:
        visit(module)


def test_every_public_name_resolves():
    for name in gf.__all__:
        assert getattr(gf, name) is getattr(gf, name)
    assert set(gf.__all__) <= set(dir(gf))
    assert len(set(gf.__all__)) == len(gf.__all__)
    with pytest.raises(AttributeError, match="module 'gaussflow' has no attribute 'nothing'"):
        gf.nothing  # noqa: B018


def test_type_checkers_see_the_same_names():
    """The lazy table and the imports under TYPE_CHECKING say the same."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen, submodules = {}, []
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "X as X marks a re-export"
            if node.module == "gaussflow":
                submodules.append(alias.name)
            else:
                seen[alias.name] = node.module.removeprefix("gaussflow.")
    assert seen == gf._HOMES
    assert sorted(submodules) == sorted(gf._MODULES)


def test_public_things_are_documented():
    for name in gf.__all__:
        thing = getattr(gf, name)
        if not name.startswith("__"):
            assert thing.__doc__, name
            assert len(thing.__doc__.split()) > 2, name


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_cheap_and_changes_no_setting():
    assert run("import sys, gaussflow; print('jax' in sys.modules, 'numpy' in sys.modules)") == "False False\n"
    assert run("import gaussflow, jax; gaussflow.Gaussian; print(jax.config.jax_enable_x64)") == "False\n"
