"""The autograd kernel of each op, derived from its declaration.

An op with a `Backward` is differentiated by the op which that names; every other op, backward ops included,
gets a node that refuses, so that a second derivative is an error and never a silent zero. Forward-mode
automatic differentiation is refused by all.

torch.library.register_autograd does not do: its node fails under torch.func.grad, and forward-mode tangents
get lost in it without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual
from torch.autograd.function import _SingleLevelFunction

from tefl.dispatch.gradients import Formula
from tefl.dispatch.policy import current_token, use_token
from tefl.dispatch.schema import schema_of
from tefl.dispatch.types import OpDecl
from tefl.dispatch.values import tensors
from tefl.ops._signature import Signature

__all__ = ["autograd_kernel"]

Values = tuple[Any, ...]
"""The arguments of a call in the order of the schema, see `Signature`."""


def autograd_kernel(decl: OpDecl) -> Callable[..., Any]:
    """The kernel for the Autograd key: records a node where a gradient is wanted, and calls the op below."""
    node: type[_Node] | None = None

    def kernel(keyset: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        nonlocal node
        if node is None:  # at the first call: an import could not pay for looking every op up
            node = _node_of(decl)
        values = node.signature.values(args, kwargs)
        given = tuple(tensors(values))
        _refuse_forward_mode(decl.name, given)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            if decl.backward is not None:
                _refuse_gradients_of_lists(node.signature, values)
            return _record(node, keyset, values)
        return _below(node, keyset, values)

    return kernel


class _Node(_SingleLevelFunction):
    """What all nodes share. Each op has a subclass, since a node is named after its class.

    ``apply`` takes the class itself, the dispatch keys and the values, and then what autograd connects. The
    base class is that of torch.autograd.Function, which would serve all levels of torch.func transforms at
    once where a dispatcher's kernel serves one.
    """

    signature: Signature
    apply: ClassVar[Callable[..., Any]]

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:
        """Nodes of equal keys may share a compiled backward; what else is on ctx is guarded on."""
        return (ctx._autograd_function_id,)

    @classmethod
    def connected(cls, values: Values) -> Values:
        """What the node has an edge to."""
        raise NotImplementedError


class _Differentiable(_Node):
    """Calls the backward op, under the policy that the forward ran under."""

    formula: Formula
    backward_signature: Signature

    @classmethod
    def connected(cls, values: Values) -> Values:
        return tuple(values[i] for i in cls.signature.tensors)

    @staticmethod
    def forward(ctx: Any, node: type[_Differentiable], keyset: Any, values: Values, *tensors: Any) -> Any:
        results = _forward(node, keyset, values)
        outputs = _as_tuple(results)
        differentiable = node.formula.differentiable
        ctx.mark_non_differentiable(*(out for i, out in enumerate(outputs) if i not in differentiable))
        ctx.set_materialize_grads(False)
        # All that the backward needs is on ctx, not on the class, for compiled autograd to trace it.
        ctx.signature, ctx.formula, ctx.backward_signature = (
            node.signature,
            node.formula,
            node.backward_signature,
        )
        ctx.token = current_token()
        ctx.zeros = {i: (outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in differentiable}
        _save(ctx, values, outputs)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        needs = ctx.needs_input_grad
        if all(grad is None for grad in grads):
            return (None,) * len(needs)
        values = tuple(_backward_values(ctx, grads))
        results = _as_tuple(_call_backward(ctx, values))
        sources = [ctx.formula.grads[i] for i in ctx.signature.tensors]
        wanted = zip(sources, needs[_OWN:], strict=True)
        return *(None,) * _OWN, *(results[i] if i is not None and need else None for i, need in wanted)


class _Undifferentiable(_Node):
    """Keeps the connection to the inputs, and raises when a gradient flows back to it."""

    @classmethod
    def connected(cls, values: Values) -> Values:
        return tuple(tensors(values))

    @staticmethod
    def forward(ctx: Any, node: type[_Undifferentiable], keyset: Any, values: Values, *tensors: Any) -> Any:
        ctx.node = node
        return _forward(node, keyset, values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise NotImplementedError(
            f"tefl::{ctx.node.signature.name} has no derivative, and a gradient through it was asked for. "
            "If it is the backward of another op, this was a second derivative (create_graph=True, nested "
            "torch.func.grad): take the first one only, or write that part in PyTorch's own operations."
        )


_OWN = 3
"""How many of apply's arguments come before the connected ones: node, keyset, values."""


def _node_of(decl: OpDecl) -> type[_Node]:
    members: dict[str, Any] = {"signature": Signature(decl.name)}
    if (formula := schema_of(decl.name).formula) is None:
        return type(decl.name, (_Undifferentiable,), members)
    members |= {"formula": formula, "backward_signature": Signature(formula.op)}
    return type(decl.name, (_Differentiable,), members)


def _record(node: type[_Node], keyset: torch.DispatchKeySet, values: Values) -> Any:
    """Run the op as a node. Under torch.func transforms a kernel serves one level, and so does this node."""
    arguments = node, keyset, values, *node.connected(values)
    if not _transformed():
        return node.apply(*arguments)
    functorch = torch._C._functorch
    before = functorch.get_single_level_autograd_function_allowed()
    functorch.set_single_level_autograd_function_allowed(True)
    try:
        return node.apply(*arguments)
    finally:
        functorch.set_single_level_autograd_function_allowed(before)


def _forward(node: type[_Node], keyset: torch.DispatchKeySet, values: Values) -> Any:
    """The op inside a node's forward, where torch has turned gradients of both modes off.

    That is right for this level of torch.func transforms; the outer ones, which come below, record their own.
    """
    if not _transformed():
        return _below(node, keyset, values)
    with torch.enable_grad(), _set_fwd_grad_enabled(True):
        return _below(node, keyset, values)


def _below(node: type[_Node], keyset: torch.DispatchKeySet, values: Values) -> Any:
    """The op itself, by the keys below autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return node.signature.redispatch(keyset & torch._C._after_autograd_keyset, values)


def _transformed() -> bool:
    """Whether a torch.func transform (grad, vjp, vmap, ...) is at work."""
    return torch._C._are_functorch_transforms_active()


def _save(ctx: Any, values: Values, outputs: tuple[Tensor, ...]) -> None:
    """Keep what the backward is fed with: tensors where hooks can see them, the rest as it is."""
    tensors: list[Tensor | None] = []
    ctx.constants = {}
    for kind, i in ctx.formula.args:
        if kind == "output":
            tensors.append(outputs[i])
        elif kind == "input" and i in ctx.signature.tensors:
            tensors.append(values[i])
        elif kind == "input":
            ctx.constants[i] = values[i]
    ctx.save_for_backward(*tensors)


def _backward_values(ctx: Any, grads: tuple[Tensor | None, ...]) -> Iterator[Any]:
    """The arguments of the backward op, in the order of its schema."""
    saved = iter(ctx.saved_tensors)
    for position, (kind, i) in enumerate(ctx.formula.args):
        if kind == "grad":
            may_be_none = position in ctx.backward_signature.optional
            yield grads[i] if grads[i] is not None or may_be_none else _zeros(*ctx.zeros[i])
        elif kind == "needs":
            yield ctx.needs_input_grad[_OWN + ctx.signature.tensors.index(i)]
        else:
            yield ctx.constants[i] if kind == "input" and i in ctx.constants else next(saved)


def _call_backward(ctx: Any, values: Values) -> Any:
    """The backward op under the forward's policy; a compiled backward follows that of the time it runs."""
    if torch.compiler.is_dynamo_compiling():
        return ctx.backward_signature.call(values)
    with use_token(ctx.token):
        return ctx.backward_signature.call(values)


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _refuse_gradients_of_lists(signature: Signature, values: Values) -> None:
    """A node that is differentiable has edges to the arguments that are tensors, and to none in a list."""
    for name, value in zip(signature.names, values, strict=True):
        if isinstance(value, (list, tuple)) and any(t.requires_grad for t in tensors(value)):
            raise NotImplementedError(
                f"tefl::{signature.name} has no derivative with regard to the tensors in the list {name}, "
                "and one of them requires grad. Pass them detached, [t.detach() for t in ...], or call the "
                "op under torch.no_grad()."
            )


def _refuse_forward_mode(op: str, tensors: tuple[Tensor, ...]) -> None:
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            f"tefl::{op} does not support forward-mode automatic differentiation (torch.func.jvp, dual "
            "tensors). Use reverse mode (torch.func.vjp, backward()), or PyTorch's own operations there."
        )


def _as_tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
