"""The three storeys, what an import costs, and what every public name owes its reader."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ctcbind

PACKAGE = Path(ctcbind.__file__).resolve().parent
REPOSITORY = Path(__file__).resolve().parent.parent

#: Which storey a module stands on: the longest prefix decides. Modules not named here are the person's.
STOREYS = {
    "ctcbind": "person",
    "ctcbind.down_sampling": "leaf",
    "ctcbind.errors": "leaf",
    "ctcbind.extras": "leaf",
    "ctcbind.forks": "leaf",
    "ctcbind.processors": "leaf",
    "ctcbind.threads": "leaf",
    "ctcbind.kinds": "leaf",
    "ctcbind.options": "leaf",
    "ctcbind.arrays": "problem",
    "ctcbind.batch": "problem",
    "ctcbind.rules": "problem",
    "ctcbind.targets": "problem",
    "ctcbind.reduction": "problem",
    "ctcbind.engines": "engine",
    "ctcbind.cuda": "engine",
    "ctcbind.bindings": "C",
}

#: What a module of each storey may import from ctcbind. "problem" is what person and engine have in common: the
#: validated batch. Nothing reaches up, and nothing but an engine reaches the C line.
MAY_IMPORT = {
    "person": {"person", "engine", "problem", "leaf"},
    "engine": {"engine", "problem", "leaf", "C"},
    "problem": {"problem", "leaf"},
    "C": {"C", "leaf"},
    "leaf": {"leaf"},
}

#: Packages that are imported only where they are asked for, and what exists for them: modules, and packages of modules.
OPTIONAL = {
    "torch": {"ctcbind.torch"},
    "jax": {"ctcbind.jax"},
    "optax": set(),
    "tensorflow": set(),
    "matplotlib": {"ctcbind.plot"},
    "cupy": set(),
    "ml_dtypes": set(),
}


def module_name(path: Path) -> str:
    parts = ("ctcbind", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def storey(module: str) -> str:
    while module not in STOREYS:
        module = module.rpartition(".")[0]
    return STOREYS[module]


def imports(module: str, nodes: list[ast.AST] | None = None) -> set[tuple[str, str]]:
    """(module imported, name taken from it or "") of every import statement that runs, absolute; or of nodes."""
    path = SOURCES[module]
    if nodes is None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                node.body = []
        nodes = list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                keep = len(parents) - node.level + (path.name == "__init__.py")
                base = ".".join([*parents[:keep], *([base] if base else [])])
            found |= {(base, alias.name) for alias in node.names}
    return found


def within(module: str) -> set[str]:
    """The modules of ctcbind that it imports; `from . import x` is ctcbind.x where that is a module."""
    found = set()
    for base, name in imports(module):
        if base.split(".")[0] != "ctcbind" or (base, name) == ("ctcbind", "__version__"):
            continue
        found.add(f"{base}.{name}" if f"{base}.{name}" in SOURCES else base)
    return found


def top_level(module: str) -> list[ast.AST]:
    """The statements that run when the module is imported: not those in functions, nor for the type checker."""
    nodes: list[ast.AST] = []
    queue: list[ast.AST] = [ast.parse(SOURCES[module].read_text(encoding="utf-8"))]
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes.append(node)
        queue.extend(ast.iter_child_nodes(node))
    return nodes


def part_of(home: str, module: str) -> bool:
    """Whether it is that module, or one of that package."""
    return module == home or module.startswith(home + ".")


def packages(found: set[tuple[str, str]]) -> set[str]:
    return {base.split(".")[0] for base, _ in found}


def test_the_walk_sees_imports_of_every_kind():
    assert {"ctcbind", "ctcbind.loss", "ctcbind.engines.native", "ctcbind.bindings.native"} <= set(SOURCES)
    assert "ctcbind.bindings.native" in within("ctcbind.engines.native")  # from ..bindings.native import Problem
    assert "ctcbind.rules" in within("ctcbind.batch")  # from . import rules
    assert "ctcbind.engines" in within("ctcbind")  # from .engines import Contract
    assert "cupy" in packages(imports("ctcbind.extras"))  # in a function
    assert "cupy" not in packages(imports("ctcbind.extras", top_level("ctcbind.extras")))
    assert storey("ctcbind.bindings.native") == "C"
    assert storey("ctcbind.decode") == "person"


@pytest.mark.parametrize("module", SOURCES)
def test_nothing_reaches_up_or_past_the_next_storey(module):
    allowed = MAY_IMPORT[storey(module)]
    wrong = {other for other in within(module) if storey(other) not in allowed}
    assert not wrong, f"{module} ({storey(module)}) imports {sorted(wrong)}"


@pytest.mark.parametrize("module", SOURCES)
def test_cffi_is_imported_in_bindings_alone(module):
    used = packages(imports(module))
    if storey(module) != "C":
        assert not used & {"cffi", "_cffi_backend", "ctypes"}
    else:
        assert not used & {"numpy", "cupy", "torch", "jax"}


def test_cffi_elsewhere_in_the_repository():
    if not (REPOSITORY / "build_ffi.py").exists():
        pytest.skip("no checkout around these tests")
    users = set()
    for path in (each for folder in (".", "tools", "examples") for each in (REPOSITORY / folder).glob("*.py")):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for node in tree:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "cffi" for name in names):
                users.add(path.name)
    assert users == {"build_ffi.py"}


@pytest.mark.parametrize("module", SOURCES)
def test_optional_packages_are_imported_only_when_asked_for(module):
    at_import = packages(imports(module, top_level(module)))
    for package, homes in OPTIONAL.items():
        if not any(part_of(home, module) for home in homes):
            assert package not in at_import, f"{module} imports {package} as soon as it is imported"


def test_the_package_imports_no_other_dependency():
    declared = {"numpy", "cffi", "_cffi_backend", "ctcbind", *OPTIONAL}
    for module in SOURCES:
        foreign = packages(imports(module)) - set(sys.stdlib_module_names) - declared
        assert not foreign, f"{module} imports {sorted(foreign)}"


def test_cached_properties_can_be_used_in_a_child_of_fork():
    """Before Python 3.12 each has a lock, which another thread may have held when the child began."""
    found = {}
    for module, path in SOURCES.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for node in [each for each in nodes if isinstance(each, ast.ClassDef)]:
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            decorators = {ast.unparse(each) for function in functions for each in function.decorator_list}
            if decorators & {"cached_property", "functools.cached_property"}:
                found[f"{module}.{node.name}"] = {ast.unparse(each) for each in node.decorator_list}
    assert {"ctcbind.batch.Batch", "ctcbind.patient.Patient"} <= set(found)
    for name, decorators in found.items():
        assert decorators & {"open_properties", "forks.open_properties"}, name


@pytest.mark.parametrize("module", SOURCES)
def test_the_library_never_prints(module):
    if module == "ctcbind.__main__":
        return  # the command line's own output
    calls = (node for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))))
    assert not [n.lineno for n in calls if isinstance(n, ast.Call) and ast.unparse(n.func) == "print"]


# --- the import ---------------------------------------------------------------------------------------------


def python(script: str, **environment: str) -> str:
    """The output of a script in a fresh interpreter that sees this ctcbind."""
    script = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n" + textwrap.dedent(script)
    environment = os.environ | environment
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_import_takes_under_150_ms_beyond_numpy(tmp_path):
    script = """
        import time, numpy
        begin = time.process_time()
        import ctcbind
        print(time.process_time() - begin)
    """
    kept = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    python(script, **kept)  # once for the byte code
    assert list(tmp_path.rglob("plan.*.pyc"))
    assert min(float(python(script, **kept)) for _ in range(7)) < 0.15  # of this process alone, whatever else runs here


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not list a process's libraries")
def test_import_loads_no_shared_library_but_its_own():
    """Beyond NumPy's, cffi's and the standard library's; nor does a first loss."""
    loaded = python("""
        def libraries():
            with open("/proc/self/maps") as maps:
                return {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
        import numpy, _cffi_backend
        before = libraries()
        import ctcbind
        imported = libraries() - before
        ctcbind.ctc_loss(numpy.zeros((2, 1, 2)), [[1]])
        print("\\n".join(imported), "|", "\\n".join(libraries() - before))
    """)
    imported, used = ({Path(p) for p in part.split() if "lib-dynload" not in p} for part in loaded.split("|"))
    own = {path for path in used if path.parent == PACKAGE / "bindings" and path.name.startswith("_native.")}
    assert len(own) == 1, f"the native engine itself was not seen among {used}"
    assert imported <= own
    assert used == own


def test_import_brings_no_optional_package_and_starts_nothing():
    names = python("""
        import numpy, threading
        before = set(sys.modules)
        import ctcbind
        assert threading.active_count() == 1
        print("\\n".join(set(sys.modules) - before))
    """).split()
    assert "ctcbind" in names
    brought = {name.split(".")[0] for name in names}
    assert not brought & {*OPTIONAL, "cffi", "pycparser", "setuptools", "importlib_metadata", "ctypes"}


# --- public names -------------------------------------------------------------------------------------------


def test_the_public_names_are_those_of_the_design():
    promised = {"ctc_loss", "ctc_loss_and_grad", "CTCLoss", "Result", "engines", "EngineInfo", "Contract"}
    promised |= {"CtcbindError", "InvalidInput", "EngineUnavailable", "EngineUnsupported", "NativeError"}
    assert promised <= set(ctcbind.__all__)
    assert ctcbind.__all__ == sorted(ctcbind.__all__)
    for name in ctcbind.__all__:
        assert hasattr(ctcbind, name)


def test_signatures_are_those_of_the_design():
    wanted = (
        "logits, targets, input_lengths=None, target_lengths=None, *, blank=0, layout='TNC', reduction='none', "
        "zero_infinity=False, topology='ctc', engine='auto'"
    )
    for function in (ctcbind.ctc_loss, ctcbind.ctc_loss_and_grad):
        signature = inspect.signature(function)
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
        assert str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)) == f"({wanted})"


@pytest.mark.parametrize("name", [name for name in ctcbind.__all__ if not name.startswith("__")])
def test_every_public_name_has_a_docstring(name):
    thing = getattr(ctcbind, name)
    assert (thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__ or "").strip()
    if inspect.isclass(thing) and thing is not ctcbind.Result:
        assert not (thing.__doc__ or "").startswith(f"{name}("), "a dataclass's own signature is no docstring"
        for each, member in vars(thing).items():
            public = not each.startswith("_") or each == "__call__"
            if public and (inspect.isfunction(member) or isinstance(member, property)):
                assert (member.__doc__ or "").strip(), f"{name}.{each}"


@pytest.mark.parametrize("module", ["ctcbind.torch", "ctcbind.jax", "ctcbind.compat"])
def test_bridges_are_imported_by_nobody_and_owe_their_readers_as_much(module):
    """Read, not imported: what they are for may not be installed."""
    parts = {part for part in SOURCES if part_of(module, part)}
    assert not [other for other in SOURCES if other not in parts and parts & within(other)]
    trees = {part: ast.parse(SOURCES[part].read_text(encoding="utf-8")) for part in parts}
    public = next(ast.literal_eval(n.value) for n in trees[module].body if ast.unparse(n).startswith("__all__ ="))
    homes = {module} | {base for base, name in imports(module) if name in public and base in parts}
    nodes = (node for home in homes for node in trees[home].body)
    defined = {n.name: n for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assert len(set(public) & set(defined)) >= len(public) - 2  # and what is another name of one of them
    for name in set(public) & set(defined):
        text = ast.get_docstring(defined[name]) or ""
        assert text, name
        assert ">>> " in text or "Error" in name or "Input" in name, f"{name} has no example"
        for member in defined[name].body if isinstance(defined[name], ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                assert ast.get_docstring(member), f"{name}.{member.name}"


def test_bridges_are_attributes_of_the_package():
    """Imported when they are asked for; what they are for may be absent, and is named then with its command."""
    script = """
        import ctcbind
        assert "ctcbind.compat" not in sys.modules
        ctcbind.compat.ctc
        for name in ("torch", "jax"):
            sys.modules[name] = None
            for way in (f"ctcbind.{name}.ctc_loss", f"import ctcbind.{name}"):
                try:
                    exec(way)
                except ModuleNotFoundError as error:
                    print(error.name, error)
        try:
            ctcbind.nothing
        except AttributeError as error:
            print(error)
    """
    assert python(script).splitlines() == [
        *["torch ctcbind.torch is for PyTorch, which is not installed: pip install 'ctcbind[torch]'"] * 2,
        *["jax ctcbind.jax is for JAX, which is not installed: pip install 'ctcbind[jax]'"] * 2,
        "module 'ctcbind' has no attribute 'nothing'",
    ]


def test_lines_of_c_and_cuda_have_up_to_120_columns():
    """Ruff sees to Python's."""
    if not (REPOSITORY / "csrc").exists():
        pytest.skip("the installed package has no sources of C")
    files = [path for folder in ("csrc", "ctcbind") for path in sorted((REPOSITORY / folder).rglob("*.*"))]
    files = [path for path in files if path.suffix in (".c", ".h", ".cuh") and not path.name.startswith("_")]
    assert {path.suffix for path in files} == {".c", ".h", ".cuh"}
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [f"{path}:{number}" for number, line in enumerate(lines, 1) if len(line) > 120] == []


@pytest.mark.parametrize("module", [m for m in SOURCES if ".bindings._" not in m])
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(ast.parse(SOURCES[module].read_text(encoding="utf-8")))


def listed(tree: ast.Module) -> set[str]:
    """What a module's __all__ says; nothing where it has none."""
    assigned = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return set(ast.literal_eval(assigned[0].value)) if assigned else set()


def test_all_lists_what_exists():
    for module, path in SOURCES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bound = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        bound |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound |= {name for _, name in imports(module)}
        assert listed(tree) <= bound, f"{module}: {listed(tree) - bound}"


def test_all_lists_what_other_modules_take():
    """But for the C line, whose lists are the names of C."""
    taken: dict[str, set[str]] = {}
    for user in SOURCES:
        for module, name in imports(user):
            if name and module in SOURCES and f"{module}.{name}" not in SOURCES and storey(module) != "C":
                taken.setdefault(module, set()).add(name)
    assert "ctc_loss" in taken["ctcbind.loss"]
    for module, names in taken.items():
        unlisted = names - listed(ast.parse(SOURCES[module].read_text(encoding="utf-8")))
        assert not unlisted, f"{module}: {sorted(unlisted)}"


def test_every_package_goes_into_a_wheel():
    project = REPOSITORY / "pyproject.toml"
    if not project.exists():
        pytest.skip("no checkout around these tests")
    (listed,) = re.findall(r"(?m)^packages = (\[.*\])$", project.read_text(encoding="utf-8"))
    found = {module for module, path in SOURCES.items() if path.name == "__init__.py"}
    assert set(ast.literal_eval(listed)) == found


# --- the version --------------------------------------------------------------------------------------------


def test_the_version_is_written_once():
    version = ctcbind.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+([.a-z]\w*)*", version)
    literal = re.compile(rf"['\"]{re.escape(version)}['\"]")
    written = [module for module, path in SOURCES.items() if literal.search(path.read_text(encoding="utf-8"))]
    assert written == ["ctcbind"]
    project = REPOSITORY / "pyproject.toml"
    if project.exists():
        text = project.read_text(encoding="utf-8")
        assert re.search(r'(?m)^dynamic = \[.*"version"', text)
        assert 'version = { attr = "ctcbind.__version__" }' in text
        assert not re.search(r"(?m)^version\s*=\s*\"", text)


def test_the_installed_version_is_this_one():
    try:
        installed = importlib.metadata.version("ctcbind")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("ctcbind is not installed here, only importable")
    assert installed == ctcbind.__version__
