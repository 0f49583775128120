"""The linear layers of a model, and those that compute something else than their own product.

An adapter is added to what a layer computes, and a quantised layer computes from packed weights. So
neither fits a layer whose weights another module's code reads: the adapter would have no effect,
and the code would read packed weights.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

from torch import nn
from transformers import PreTrainedModel

_SETS_UP = ("__init__", "reset_parameters")
_ABOUT = ("dtype", "device", "shape", "ndim")
"""What code may ask about weights without reading them."""


def linear_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """All linear layers of a model except the output head, by name."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }


def read_elsewhere(model: PreTrainedModel) -> dict[str, str]:
    """Names of linear layers whose weights are read by other code than their own, and the reason.

    The code is that of the model's classes, also for kernels that this machine lacks: Mamba's read
    ``out_proj``, Jamba's layers read ``dt_proj``, and a router is a class of its own.
    """
    found, reads = {}, dict[str, set[str]]()
    for name, module in linear_layers(model).items():
        owner, _, own = name.rpartition(".")
        parent = type(model.get_submodule(owner))
        if (kind := f"{parent.__module__}.{parent.__qualname__}") not in reads:
            reads[kind] = _reads_weights(parent)
        if own in reads[kind]:
            found[name] = f"{parent.__name__} reads its weights"
        elif not getattr(module, "is_product", type(module).forward is nn.Linear.forward):
            found[name] = f"a {type(module).__name__} computes more than a product"
    return found


def _reads_weights(kind: type) -> set[str]:
    """Names of a class's own layers whose weights its methods read."""
    found = set[str]()
    for part in kind.__mro__:
        if part is nn.Module:
            break
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError, SyntaxError):
            continue
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.name not in _SETS_UP:
                found |= _read_in(function)
    return found


def _read_in(function: ast.FunctionDef) -> set[str]:
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    asked = {id(node.value) for node in nodes if node.attr in _ABOUT}
    return {
        node.value.attr
        for node in nodes
        if node.attr == "weight"
        and id(node) not in asked
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
    }
