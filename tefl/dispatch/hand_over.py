"""What the native router is told to do with calls that look like one that Python has served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._errors import one_line
from .._log import logger
from .adapt import Adapted, Trusted
from .types import NotSupported, OpImpl

__all__ = ["line_of"]


def line_of(
    call: Adapted | Trusted,
    by_form: bool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    reported: dict[str, OpImpl],
) -> tuple[Any, ...]:
    """The router's line, after form and epoch, about an implementation that has served a call.

    That is: what to call, its impl_id, the predicate to ask before each call (None if ``by_form``: which
    implementation serves follows from the form), what mends its results, and what they must look like.
    ``reported`` collects what has been warned of.
    """
    impl = call.impl
    promise = call.promise(args, kwargs)
    target = _native_kernel(impl, promise, args, kwargs, reported) or impl.fn
    return target, impl.impl_id, None if by_form else impl.supports, call.mend, promise


def _native_kernel(
    impl: OpImpl,
    promise: tuple[Any, ...] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    reported: dict[str, OpImpl],
) -> Any:
    """What the implementation offers native code for such calls; None where Python must serve them.

    The call that this is about has been served, so what goes wrong here is reported and not raised.
    """
    offer = getattr(impl.fn, "native_kernel", None)
    try:
        return None if offer is None else offer(promise, args, kwargs)
    except NotSupported:
        return None
    except Exception as error:  # noqa: BLE001 - an implementation's code may raise anything
        told = f"native_kernel of {impl.impl_id}"
        if reported.get(told) is not impl:
            reported[told] = impl
            logger().warning(
                "Op %r: %r could not be handed to native code, Python goes on serving it: %s",
                impl.op_name, impl.impl_id, one_line(error),
            )  # fmt: skip
        return None
