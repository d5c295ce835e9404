"""Reads the source of a Celery project and says what `holdfast.contrib.celery` keeps, changes and refuses.

Nothing of the project is imported. What cannot be seen in the source (a task called through a variable, settings that
are computed) is not found here; the compatibility layer refuses it at import or at the call, with the same words.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.admin.inspect import several
from holdfast.contrib.celery.refusals import REFUSED_ATTRIBUTES, REFUSED_IMPORTS, REFUSED_OPTIONS, SUPPORTED, WORKFLOWS
from holdfast.errors import BadApp

#: Source files that are read at most.
MAX_FILES: Final = 20_000
#: Bytes of a source file; a longer one is data.
MAX_BYTES: Final = 2_000_000
_SKIPPED: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})
_CONTENT: Final = frozenset({"task_serializer", "result_serializer", "accept_content", "result_accept_content"})
_NOT_JSON: Final = ("pickle", "yaml", "msgpack")
_ENQUEUES: Final = frozenset({"delay", "apply_async", "apply"})
_SIGNATURES: Final = frozenset({"s", "si", "signature", "subtask"})
_MANY: Final = {"map": "xmap", "starmap": "xstarmap", "chunks": "chunks"}


@dataclass(frozen=True, order=True)
class Finding:
    """One place in the source, and what becomes of it."""

    path: str
    line: int
    verdict: str  # "refused" or "differs"
    text: str


@dataclass
class Findings:
    """All that was found in a project."""

    found: list[Finding] = field(default_factory=list)
    #: How often each feature that works as before is used.
    works: Counter[str] = field(default_factory=Counter)
    files: int = 0

    @property
    def refused(self) -> list[Finding]:
        """The places that must change first."""
        return [each for each in self.found if each.verdict == "refused"]


def check_project(reference: str, root: Path) -> Findings:
    """What was found in the source files below `root`; `BadApp` if `module:app` is not one of them."""
    _find_app(reference, root)
    findings = Findings()
    trees = []
    for path in itertools.islice(_sources(root), MAX_FILES):
        shown = str(path.relative_to(root))
        findings.files += 1
        try:
            trees.append((shown, ast.parse(path.read_bytes(), str(path))))
        except (SyntaxError, ValueError) as error:
            findings.found.append(Finding(shown, getattr(error, "lineno", 0) or 0, "differs", f"not read: {error}"))
    tasks = frozenset(name for _, tree in trees for name in _declared(tree))
    apps = frozenset(name for _, tree in trees for name in _apps(tree))
    for shown, tree in trees:
        _Reader(shown, tasks, apps, findings).visit(tree)
    findings.found.sort()
    return findings


def _find_app(reference: str, root: Path) -> None:
    module, _, attribute = reference.partition(":")
    path = root.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if module and candidate.is_file():
            break
    else:
        raise BadApp(f"there is no module {module!r} in {root}: write it as proj.celery:app, from the project's folder")
    name = (attribute or "app").partition(".")[0]
    if not any(name in _bound(node) for node in ast.walk(ast.parse(candidate.read_bytes()))):
        raise BadApp(f"{candidate.relative_to(root)} defines no {name!r}: write it as proj.celery:app")


def _bound(node: ast.AST) -> list[str]:
    """The names that a statement binds."""
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name for each in node.names]
    return []


def _sources(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in _SKIPPED or path.is_symlink():
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from _sources(path)
        elif path.suffix == ".py" and path.stat().st_size <= MAX_BYTES:
            yield path


def _declared(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(map(_is_task, node.decorator_list)):
            yield node.name


def _apps(tree: ast.Module) -> Iterator[str]:
    """The names of Celery apps."""
    for node in ast.walk(tree):
        made = node.value if isinstance(node, ast.Assign) else None
        if isinstance(made, ast.Call) and _last_name(made.func) == "Celery":
            yield from _bound(node)


def _is_task(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _last_name(called) in {"task", "shared_task", "periodic_task"}


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value.lower()


class _Reader(ast.NodeVisitor):
    """Collects the findings of one file."""

    def __init__(self, path: str, tasks: frozenset[str], apps: frozenset[str], findings: Findings) -> None:
        self._path = path
        self._tasks = tasks
        self._apps = apps
        self._findings = findings
        #: Names in this file that are chain, group, chord and the like of Celery's.
        self._workflows: dict[str, str] = {}
        #: Names in this file that are an app, a result or a signature.
        self._kinds: dict[str, str] = {}

    def _refuse(self, node: ast.AST, text: str) -> None:
        self._findings.found.append(Finding(self._path, getattr(node, "lineno", 0), "refused", text))

    def _differs(self, node: ast.AST, text: str) -> None:
        self._findings.found.append(Finding(self._path, getattr(node, "lineno", 0), "differs", text))

    def _works(self, feature: str) -> None:
        self._findings.works[feature] += 1

    # -- imports --------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        """`import celery.…`."""
        for each in node.names:
            self._check_module(node, _own_name(each.name))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from celery.… import …`."""
        module = _own_name(node.module or "")
        for each in node.names:
            if each.name in self._apps:
                self._kinds[each.asname or each.name] = "app"
        if node.level or not module or not self._check_module(node, module):
            return
        for each in node.names:
            if each.name == "current_app":
                self._kinds[each.asname or each.name] = "app"
            self._check_name(node, module, each.name, each.asname or each.name)

    def _check_module(self, node: ast.AST, module: str) -> bool:
        if module != "celery" and not module.startswith("celery."):
            return False
        for prefix, why in REFUSED_IMPORTS.items():
            if module == prefix or module.startswith(f"{prefix}."):
                self._refuse(node, f"{module}: {why}")
                return False
        return True

    def _check_name(self, node: ast.AST, module: str, name: str, bound: str) -> None:
        if name in WORKFLOWS:
            self._workflows[bound] = name
        elif name in SUPPORTED.get(module, frozenset()) or f"{module}.{name}" in SUPPORTED:
            self._works("signal" if module == "celery.signals" else "import")
        elif why := REFUSED_IMPORTS.get(f"{module}.{name}"):
            self._refuse(node, f"{module}.{name}: {why}")
        else:
            self._refuse(node, f"{module}.{name} is not in holdfast.contrib.celery")

    # -- declarations ---------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A task, perhaps."""
        self._check_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """A task that Celery could not run either, perhaps."""
        if any(map(_is_task, node.decorator_list)):
            self._refuse(node, f"task {node.name} is an `async def`: declare it with @app.task of a Holdfast app")
        self._check_function(node)

    def _check_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in filter(_is_task, node.decorator_list):
            self._works("task")
            for option in decorator.keywords if isinstance(decorator, ast.Call) else ():
                self._check_option(option, f"task {node.name}")
        self.generic_visit(node)

    def _check_option(self, option: ast.keyword, what: str) -> None:
        why = REFUSED_OPTIONS.get(option.arg or "")
        is_off = isinstance(option.value, ast.Constant) and option.value.value in {None, False}
        if why is not None and not is_off:
            self._refuse(option.value, f"{what}: {option.arg}: {why}")
        if option.arg == "serializer" and any(text in _NOT_JSON for text in _texts(option.value)):
            self._refuse(option.value, f"{what}: serializer: only JSON; pass ids and JSON values")
        if option.arg == "ignore_result":
            self._differs(option.value, f"{what}: ignore_result: results are kept for result_expires all the same")

    # -- settings -------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        """A setting, perhaps."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._kinds[target.id] = self._kind(node.value)
            self._check_setting(target, _last_name(target), node.value)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Settings, perhaps."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._check_setting(key, key.value, value)
        self.generic_visit(node)

    def _check_setting(self, node: ast.AST, name: str, value: ast.AST) -> None:
        setting = name.lower().removeprefix("celery_")
        if setting in _CONTENT and any(other in text for text in _texts(value) for other in _NOT_JSON):
            self._refuse(node, f"{name}: only JSON; pass ids and JSON values, not objects")
        elif setting in REFUSED_OPTIONS and setting.startswith(("task_", "worker_", "beat_")):
            self._refuse(node, f"{name}: {REFUSED_OPTIONS[setting]}")
        elif setting == "beat_schedule":
            self._works("beat schedule")

    # -- attributes -----------------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """An attribute of an app, a task, a result or a signature, perhaps."""
        kind = self._kind(node.value)
        why = REFUSED_ATTRIBUTES[kind].get(node.attr) if kind and isinstance(node.ctx, ast.Load) else None
        if why is not None:
            self._refuse(node, f"{kind}.{node.attr}: {why}")
        self.generic_visit(node)

    def _kind(self, node: ast.expr) -> str:
        """What an expression is, as far as the source tells: app, task, result, signature; empty for anything else."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id, "task" if node.id in self._tasks else "")
        if not isinstance(node, ast.Call):
            return ""
        name = _last_name(node.func)
        of = self._kind(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Name):
            return {"Celery": "app", "AsyncResult": "result"}.get(name, "")
        if name in {"AsyncResult", "send_task"} and of == "app":
            return "result"
        if name in _ENQUEUES and of in {"task", "signature"}:
            return "result"
        return "signature" if name in _SIGNATURES and of in {"app", "task"} else ""

    # -- calls ----------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        """A call of a task, a retry, a workflow, a control command, or `conf.update`."""
        called = node.func
        if isinstance(called, ast.Name) and called.id in self._workflows:
            name = self._workflows[called.id]
            self._refuse(node, f"{name}(): {WORKFLOWS[name]}")
        elif isinstance(called, ast.Attribute):
            self._check_method(node, called)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """`add.s(1) | add.s(2)`."""
        if isinstance(node.op, ast.BitOr) and any(map(self._is_signature, (node.left, node.right))):
            self._refuse(node, f"a | b: {WORKFLOWS['chain']}")
        self.generic_visit(node)

    def _is_signature(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        is_method = isinstance(called, ast.Attribute) and called.attr in _SIGNATURES
        return is_method and _last_name(called.value) in self._tasks  # type: ignore[union-attr]

    def _check_method(self, node: ast.Call, called: ast.Attribute) -> None:
        of, name = _last_name(called.value), called.attr
        if name in {"delay", "apply_async", "send_task", "apply"} and (of in self._tasks or name != "apply"):
            self._works("call")
            for option in node.keywords:
                self._check_option(option, f"{of}.{name}")
        elif name == "retry" and of in {"self", "current_task", *self._tasks}:
            self._check_retry(node)
        elif name in _MANY and of in self._tasks:
            self._refuse(node, f"{of}.{name}(): {WORKFLOWS[_MANY[name]]}")
        elif of == "control" and name != "revoke":
            self._refuse(node, f"control.{name}(): {REFUSED_IMPORTS['celery.app.control']}")
        elif of == "self" and name in {"replace", "add_to_chord"}:
            self._refuse(node, f"self.{name}(): {WORKFLOWS['chain']}")
        elif of == "conf" and name == "update":
            for option in node.keywords:
                self._check_setting(option.value, option.arg or "", option.value)

    def _check_retry(self, node: ast.Call) -> None:
        self._works("self.retry")
        for option in node.keywords:
            if option.arg in {"args", "kwargs"}:
                self._refuse(node, f"retry({option.arg}=…): a retry keeps its arguments; enqueue another task instead")
            elif option.arg == "max_retries":
                self._differs(node, "retry(max_retries=…): at most the max_retries that the task is declared with")
            elif option.arg in {"queue", "link", "link_error", "priority"}:
                self._refuse(node, f"retry({option.arg}=…): a retry stays the same task; enqueue another task instead")


def _own_name(module: str) -> str:
    """The module of Celery's that this one is or stands for."""
    ours = "holdfast.contrib.celery"
    return f"celery{module.removeprefix(ours)}" if module == ours or module.startswith(f"{ours}.") else module


def summary(findings: Findings) -> str:
    """One line: what works, and how much must change."""
    works = ", ".join(several(count, feature) for feature, count in findings.works.most_common())
    return f"{several(findings.files, 'file')}: {works or 'nothing of Celery'}; {len(findings.refused)} refused"


def rows(findings: Findings) -> Sequence[tuple[str, str, str]]:
    """Place, verdict and text of each finding, in the order of the source."""
    return [(f"{each.path}:{each.line}", each.verdict, each.text) for each in findings.found]
