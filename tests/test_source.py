"""Rules of the source, over the whole tree: nothing that could run a file's code, house names, ASCII."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(p for folder in ("regard", "bench", "examples") for p in (ROOT / folder).rglob("*.py"))
PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def called(node: ast.Call) -> str:
    """The dotted name of what is called: 'torch.load'."""
    return ast.unparse(node.func)


def keywords(node: ast.Call) -> dict[str | None, str]:
    return {k.arg: ast.unparse(k.value) for k in node.keywords}


def dangers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that could let a file run code or write where it should not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                if name.split(".")[0] in PICKLERS:
                    yield node.lineno, f"imports {name}"
        if isinstance(node, ast.Call):
            name, given = called(node), keywords(node)
            if name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"):
                yield node.lineno, name
            if name in (
                "torch.load",
                "torch.save",
                "torch.jit.load",
                "yaml.load",
                "yaml.unsafe_load",
                "yaml.full_load",
            ):
                yield node.lineno, name
            if name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") != "False":
                yield node.lineno, name
            if given.get("shell") == "True" or given.get("trust_remote_code") == "True":
                yield node.lineno, f"{name} with shell or remote code"
            if name.endswith("extractall") and "filter" not in given:
                yield node.lineno, "extractall without a filter"
            if name.endswith(("hf_hub_download", "snapshot_download", "urlopen", "urlretrieve")):
                yield node.lineno, f"{name} goes to the network"


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_can_run_code(path: Path) -> None:
    assert list(dangers(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_the_rule_sees_what_it_should() -> None:
    bad = [
        "import pickle",
        "torch.load(p)",
        "eval(s)",
        "run(c, shell=True)",
        "t.extractall(d)",
        "yaml.load(f, L)",
    ]
    for line in bad:
        assert len(list(dangers(ast.parse(line)))) == 1, line


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_house_style(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.isascii(), "ASCII only"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            wrong = [w for w in ("Config", "Base", "Utils", "Helper", "Manager") if w in node.name]
            assert not wrong, f"{path.name}:{node.lineno}: {node.name}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.is_relative_to(ROOT / "regard")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_everything_public_is_described(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "what the file is for"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            overloads = [ast.unparse(d) for d in node.decorator_list]
            assert "overload" in overloads or ast.get_docstring(node), (
                f"{path.name}:{node.lineno} {node.name}"
            )


def test_the_tree_goes_one_way() -> None:
    """nn knows neither text nor tasks nor training; data knows no model."""
    allowed = {
        "native": set(),
        "nn": {"nn", "native", "spec", "dims", "errors", "shapes"},
        "data": {"data", "spec", "dims", "errors", "shapes"},
        "decode": {"decode", "model", "nn", "native", "spec", "dims", "errors", "shapes"},
    }
    for folder, may in allowed.items():
        for path in (ROOT / "regard" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard."):
                    assert str(node.module).split(".")[1] in may, f"{path}:{node.lineno} {node.module}"
