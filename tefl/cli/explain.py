"""``python -m tefl explain OP``: which implementation a call would run here, and why not the others."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import torch

import tefl
from tefl.cli._arguments import example_arguments, named_shape, named_value, undeclared_arguments
from tefl.cli._output import add_json_option, write_json
from tefl.dispatch import Decision, DispatchError, declarations
from tefl.dispatch.values import named_dtype

__all__ = ["add_parser"]


def add_parser(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommands.add_parser(
        "explain",
        help="say which implementation a call would run, and why not the others",
        description="Nothing runs: tensors of the given form are made, and the implementations are asked.",
    )
    parser.add_argument("op", help="the op's name, such as rmsnorm_fwd")
    parser.add_argument(
        "--shape",
        action="append",
        type=named_shape,
        default=[],
        metavar="[NAME=]N,N,...",
        help="the shape of a tensor argument, of the next one without NAME; what is left out follows from "
        "what the op accepts, if it is declared",
    )
    parser.add_argument("--dtype", type=_dtype, default=torch.float32, help="such as bfloat16 (float32)")
    parser.add_argument("--device", type=_device, default=torch.device("cpu"), help="such as cuda:1 (cpu)")
    parser.add_argument(
        "--arg",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help="another argument, such as zero_centered_gamma=True",
    )
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    decl, others = declarations().get(options.op), dict(options.arg)
    try:
        if decl is not None:
            arguments = example_arguments(decl, options.shape, options.dtype, options.device, others)
            decision = tefl.explain(options.op, **arguments)
        else:
            tensors, named = undeclared_arguments(options.shape, options.dtype, options.device)
            decision = tefl.explain(options.op, *tensors, **named, **others)
    except (TypeError, ValueError, DispatchError) as error:
        raise argparse.ArgumentError(None, str(error)) from error
    if options.json:
        write_json(_plain(decision))
    else:
        print(decision)
    return 0 if decision.winner is not None else 1


def _plain(decision: Decision) -> dict[str, Any]:
    hidden = ("impl",)
    candidates = [
        {f.name: getattr(c, f.name) for f in dataclasses.fields(c) if f.name not in hidden}
        for c in decision.candidates
    ]
    return {
        "op": decision.op_name,
        "call": dataclasses.asdict(decision.facts),
        "policy": str(decision.policy),
        "verified": decision.verified,
        "winner": decision.winner.impl_id if decision.winner is not None else None,
        "candidates": candidates,
    }


def _dtype(text: str) -> torch.dtype:
    if (dtype := named_dtype(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no dtype of torch; float32, bfloat16, float16 are")
    return dtype


def _device(text: str) -> torch.device:
    if text == "cpu":
        return torch.device("cpu")
    device: torch.device = tefl.privateuse1.device_arg(text)
    return device
