"""Rules of the packages: which imports which, the links, the deployments, and the contents of the wheel."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from prefect.flows import load_flow_from_entrypoint

from holdfast.deployments.worker import manifest
from tests.parsed import parsed

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("flows", "tasks", "policies", "storage", "deployments")
PACKAGE = ROOT / "holdfast"

# What each part may import of the others. `base` is models, errors, clock, settings, paths, secret, tls: the lowest.
BASE = {
    "models",
    "errors",
    "clock",
    "commands",
    "settings",
    "from_environment",
    "envfile",
    "proxies",
    "paths",
    "private",
    "redact",
    "names",
    "shown",
    "secret",
    "tls",
    "listen",
    "strangers",
    "guarded_http",
    "refusal",
    "durable",
    "descriptors",
    "failpoint",
    "bounded_pickle",
    "holdfast",
}
BELOW_TASKS = BASE | {"policies", "storage", "drivers", "agent", "plugins"}
MAY_IMPORT = {
    "models": {"models"},
    "policies": {"models", "policies", "errors"},
    "plugins": BASE | {"plugins", "policies"},
    "storage": BASE | {"storage", "plugins"},
    "drivers": BASE | {"drivers", "plugins"},
    # The catalogue of Xids is a policy; damage is imported by ranks of machines that were armed for it.
    # `roles` is for the processes that it starts, as `session` is.
    "agent": BASE | {"agent", "storage", "roles", "damage", "policies", "plugins"},
    "session": BASE | {"session", "storage", "agent"},
    "operations": BELOW_TASKS | {"operations"},
    "tasks": BELOW_TASKS | {"operations", "tasks"},
    "flows": BASE | {"operations", "tasks", "flows"},
    "data": BASE | {"data", "session"},
    "integrations": BASE | {"integrations", "session", "storage"},
    "simulate": BASE | {"simulate", "policies"},
    "hindsight": BELOW_TASKS | {"hindsight", "operations", "tasks"},
    "scaffold": BASE | {"scaffold", "plugins"},
    "deployments": BELOW_TASKS | {"deployments", "operations", "tasks", "process_name"},
    "testing": BELOW_TASKS | {"testing", "hindsight", "operations", "tasks", "deployments"},
    # Faults are done underneath: to agents, services and machines. They, chaos and the demo are tools beside the house.
    "damage": {"damage"},
    "inject": BASE | {"inject", "damage", "agent", "storage", "drivers", "plugins", "deployments"},
    "chaos": BASE | {"chaos", "inject", "client", "demo", "policies", "storage", "deployments"},
    "demo": BASE | {"demo", "inject", "client", "policies", "storage", "deployments"},
    "client": BASE | {"client", "agent", "storage"},
}
ON_TOP = {"cli"}
"""Packages that may import all others."""
_TWICE = (
    "Agreement Gateway HoldfastCallback Leases Metrics Part Place Recovered Scenario Settings Stretch Waiting"
)
TWICE = frozenset(_TWICE.split())
"""Names that public classes share still; `HoldfastCallback` is one for each library."""


@functools.cache
def parts() -> dict[str, list[Path]]:
    """Source files by part of the package (a file of the package itself is a part of its own)."""
    found: dict[str, list[Path]] = {}
    for path in PACKAGE.glob("*.py"):
        found[path.stem if path.stem != "__init__" else "holdfast"] = [path]
    for folder in PACKAGE.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            found[folder.name] = sorted(folder.rglob("*.py"))
    return found


def imported(source: str) -> set[str]:
    """Parts of holdfast that a source text imports, anywhere in it; bare names of the linked folders too."""
    found = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "holdfast":
                part = rest.partition(".")[0]
                found.add(part if part in parts() else "holdfast")
            elif first in LINKED:
                found.add(f"bare {first}")
    return found


@functools.cache
def imports_of(part: str) -> dict[str, set[str]]:
    """By file, what it imports."""
    return {str(path.relative_to(ROOT)): imported(path.read_text()) for path in parts()[part]}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_parts_import_only_what_lies_below_them(part: str) -> None:
    """flows -> tasks -> agent client, drivers, storage, policies -> models."""
    wrong = {file: sorted(names - MAY_IMPORT[part]) for file, names in imports_of(part).items()}
    assert {file: names for file, names in wrong.items() if names} == {}


def test_every_part_has_its_rule() -> None:
    """A new package states which others it may use."""
    rooms = {name for name, files in parts().items() if len(files) > 1}
    assert rooms - MAY_IMPORT.keys() - BASE == ON_TOP


def test_public_classes_have_names_of_their_own() -> None:
    """A reader looks up a name that two classes share twice; those of :data:`TWICE` are left to be renamed."""
    files = {path for paths in parts().values() for path in paths}
    names = collections.Counter(
        name for path in files for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE)
    )
    assert {name for name, times in names.items() if times > 1} <= TWICE


def test_parts_import_each_other_in_one_direction() -> None:
    """Of two parts one is below the other, so that it can be read, and used, without it."""
    below = {part: set().union(*imports_of(part).values()) - {part} for part in parts()}
    assert cycle(below) == []


def test_modules_import_each_other_in_one_direction() -> None:
    """Within the parts too, and inside functions; only the types of arguments may be those of a module above."""
    modules = {module_of(path): path for paths in parts().values() for path in paths}
    below = {name: modules_imported(path.read_text(), modules) - {name} for name, path in modules.items()}
    assert sum(map(len, below.values())) > len(below)
    assert cycle(below) == []


def module_of(path: Path) -> str:
    """Return the name that a file of the package is imported by."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules_imported(source: str, modules: Collection[str]) -> set[str]:
    """Return which of ``modules`` a source text imports, but for those that only type checkers read."""
    found: set[str] = set()
    todo: list[ast.AST] = [parsed(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else f"{node.module}" for name in names}
        else:
            todo += ast.iter_child_nodes(node)
    return found & set(modules)


def cycle(below: Mapping[str, Collection[str]]) -> list[str]:
    """Return names that lead from one to the next and back to the first; empty: there are none."""
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_the_check_of_directions_sees_a_cycle() -> None:
    """The control: an import inside a function closes it, one for type checkers does not."""
    modules = {"holdfast.a", "holdfast.b"}
    inside = "def f():\n    from holdfast.b import g\n"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from holdfast import b\n"
    assert modules_imported(inside, modules) == {"holdfast.b"}
    assert modules_imported(typed, modules) == set()
    assert set(cycle({"holdfast.a": {"holdfast.b"}, "holdfast.b": {"holdfast.a"}})) == modules
    assert cycle({"holdfast.a": {"holdfast.b"}, "holdfast.b": set()}) == []


def test_only_deployments_import_flows() -> None:
    """Nothing but deployments and the CLI knows the playbooks by name."""
    users = {part for part in parts() for names in imports_of(part).values() if "flows" in names}
    assert users <= {"flows", "deployments", "cli"}


def test_nothing_imports_linked_folders_by_their_bare_names() -> None:
    """`import policies.x` would make a second copy of every class."""
    folders = [PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(files) > 100
    bare = {
        str(path): names
        for path in files
        if (names := {n for n in imported(path.read_text()) if "bare" in n})
    }
    assert bare == {}


def test_tasks_talk_to_agents_through_the_client_only() -> None:
    """No task or operation reaches into the agent's own modules."""
    for path in (*parts()["tasks"], *parts()["operations"]):
        text = path.read_text()
        for line in text.splitlines():
            assert "holdfast.agent" not in line or "holdfast.agent.client" in line, f"{path}: {line}"


def test_the_import_check_sees_a_wrong_import() -> None:
    """The control: each form of a forbidden import is seen."""
    seen = imported(
        "import holdfast.flows.x\nfrom holdfast.tasks import y\ndef f():\n    from policies.z import q\n"
    )
    assert seen == {"flows", "tasks", "bare policies"}
    assert imported("from holdfast import Session, drivers") == {"holdfast", "drivers"}


def test_operations_load_no_prefect() -> None:
    """The gateway starts, stops and evicts without it."""
    names = ", ".join(f"holdfast.operations.{path.stem}" for path in parts()["operations"])
    script = f"import sys, {names}; sys.exit('prefect' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", script], timeout=100, check=True)


def test_the_gateway_reaches_no_task() -> None:
    """Its acts on jobs and machines are operations."""
    gateway = [path for path in parts()["deployments"] if "gateway" in path.parts]
    assert [str(path) for path in gateway if "tasks" in imported(path.read_text())] == []


def test_session_loads_neither_prefect_nor_scipy() -> None:
    """The imports of a training script stay small; torch is its own to import."""
    script = (
        "import sys, holdfast\n"
        "assert 'torch' not in sys.modules, 'import holdfast alone loads torch'\n"
        "holdfast.Session\n"
        "print(sorted({'prefect', 'scipy', 'sqlalchemy', 'fastapi'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_sweep_of_a_machine_loads_little() -> None:
    """It runs when a machine is taken away, on any interpreter that has psutil."""
    script = (
        "import sys, holdfast.drivers.sweep\n"
        "print(sorted({'pydantic', 'yaml', 'httpx', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_to_the_folders(name: str) -> None:
    """The package's rooms are relative links to the folders beside it."""
    link = PACKAGE / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{name}"
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


def test_package_without_its_links_says_so(tmp_path: Path) -> None:
    """An archive that flattened the links fails at import, with the way out."""
    shutil.copytree(PACKAGE, tmp_path / "holdfast", symlinks=True, ignore=lambda *_: ["__pycache__", *LINKED])
    for name in LINKED:
        (tmp_path / "holdfast" / name).write_text(f"../{name}")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import holdfast"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "git clone" in done.stderr


@pytest.mark.parametrize("deployment", manifest.read(ROOT / "prefect.yaml"), ids=lambda one: one.name)
def test_deployment_loads(deployment: manifest.Deployment) -> None:
    """Its entrypoint is a flow, named like the deployment."""
    flow = load_flow_from_entrypoint(deployment.entrypoint, use_placeholder_flow=False)
    assert flow.name == deployment.name
    assert flow.isasync


def test_every_flow_has_a_deployment() -> None:
    """One file, one flow, one deployment, one name."""
    files = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__"}
    deployments = manifest.read(ROOT / "prefect.yaml")
    assert {one.entrypoint for one in deployments} == {f"holdfast.flows.{name}:{name}" for name in files}
    assert {one.name for one in deployments} == {name.replace("_", "-") for name in files}


@pytest.mark.timeout(600)
def test_wheel_carries_everything_that_runs(tmp_path: Path) -> None:
    """Flows, policy files and prefect.yaml are in the wheel under one name; nothing lands beside it."""
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    isolation = ["--no-build-isolation"] if has_setuptools() else []
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", *isolation, "--disable-pip-version-check"]
    built = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"holdfast"}
    for folder in LINKED:
        there = {f"holdfast/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
        assert there <= names, sorted(there - names)[:5]
    assert {f"holdfast/policies/{path.name}" for path in (ROOT / "policies").glob("*.yaml")} <= names
    assert "holdfast/py.typed" in names
    static = Path("deployments/gateway/page/static")
    there = {f"holdfast/{path.relative_to(ROOT)}" for path in (ROOT / static).rglob("*") if path.is_file()}
    assert len(there) > 10
    assert there <= names, sorted(there - names)

    # The installed package finds its own manifest and policy.
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
        "from holdfast.deployments.worker import manifest\n"
        "from holdfast.policies.config.policy import Policy\n"
        "assert 'installed' in manifest.__file__, manifest.__file__\n"
        "Policy.load(None)\n"
        "print(len(manifest.read()))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(manifest.read(ROOT / "prefect.yaml"))


def has_setuptools() -> bool:
    """Whether the build can run in this environment, without fetching anything."""
    probe = "import setuptools; raise SystemExit(int(setuptools.__version__.split('.')[0]) < 77)"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0
