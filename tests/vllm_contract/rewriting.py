"""Rewrites source code so that attribute accesses and calls go through a recorder."""

from __future__ import annotations

import ast

Site = tuple[str, int, int, str]
"""Module, line, column and name of an attribute access."""

RECORDER = "__recorder__"
"""The global name of the recorder in a rewritten module."""


def rewrite(module: str, source: str) -> tuple[ast.Module, set[Site]]:
    """The rewritten module, and its attribute accesses."""
    rewriter = _Rewriter(module)
    tree = rewriter.visit(ast.parse(source))
    return ast.fix_missing_locations(tree), rewriter.sites


class _Rewriter(ast.NodeTransformer):
    """`a.b` becomes `load(a, "b")`, `a.b = c` becomes `store(a, "b").b = c`, `f(x)` becomes `call(f)(x)`.

    Annotations stay as they are.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.sites: set[Site] = set()

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        site = (self.module, node.lineno, node.col_offset, node.attr)
        self.sites.add(site)
        constants = [ast.Constant(node.attr), _constant(site)]
        if isinstance(node.ctx, ast.Load):
            return _at(node, _hook("load", [node.value, *constants]))
        node.value = _at(node, _hook("store", [node.value, *constants]))
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        keywords = tuple(each.arg for each in node.keywords if each.arg is not None)
        constants = [_constant(keywords), ast.Constant(bool(node.args))]
        node.func = _at(node, _hook("call", [node.func, *constants]))
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.target = self.visit(node.target)
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node


def _hook(name: str, arguments: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name(RECORDER, ast.Load()), name, ast.Load()), arguments, [])


def _constant(value: tuple[str | int, ...]) -> ast.expr:
    return ast.Tuple([ast.Constant(each) for each in value], ast.Load())


def _at(node: ast.AST, new: ast.expr) -> ast.expr:
    return ast.copy_location(new, node)
