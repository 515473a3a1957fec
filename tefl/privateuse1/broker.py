"""The broker: decides who gets the PrivateUse1 device, and touches torch only when nothing can go wrong.

One name per process, and torch cannot take it back. So everything that can be checked is checked first:
the name, the library, its ABI and mandatory functions, what the backend declares, then the kernels it
registers, which are undone again if a mandatory one is missing. The name comes last.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

from torch.library import Library
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

import tefl.dispatch
from tefl import _env, _native
from tefl._errors import ConfigError, one_line
from tefl._log import logger
from tefl.privateuse1 import discovery, fallback_table, module, names, process_group
from tefl.privateuse1.backend import PrivateUse1Backend
from tefl.privateuse1.checks import BackendError, Defect, declaration_defects, kernel_defects
from tefl.privateuse1.library import ProviderLibrary, open_library, unusable_library
from tefl.privateuse1.workarounds import KernelRecorder, graph_was_recorded


class Plan(NamedTuple):
    """A backend about to be claimed: its library judged, its device name settled, and who asked for it."""

    backend: PrivateUse1Backend
    library: ProviderLibrary
    device_name: str
    origin: str

    def defects(self) -> list[Defect]:
        """Return everything that is wrong with it and can be known without touching torch."""
        backend = self.backend
        found = list(self.library.defects)
        if self.device_name or not found:  # a library that did not load could not tell its name
            found += names.device_name_defects(self.device_name)
        found += declaration_defects(
            backend.default_autocast_dtype, backend.register_kernels, backend.register_ccl
        )
        return [*found, *self.library.claim_defects(), *_setting_defects()]


class Claim(NamedTuple):
    """The outcome of a claim. With `defects` the name is taken, and using the device raises them."""

    plan: Plan
    defects: tuple[Defect, ...] = ()


def _setting_defects() -> list[Defect]:
    """Return what cannot be read of the variables that a claim passes on."""
    try:
        _env.get("TEFL_SYNC_TIMEOUT")
    except ConfigError as error:
        return [Defect(str(error), "correct the variable")]
    return []


_lock = threading.RLock()
_claim: Claim | None = None
_claiming = False
_autoloaded = False
_failure: tuple[Plan | None, tuple[Defect, ...]] | None = None  # the last attempt that claimed nothing
_kept_libraries: list[Library] = []


def current_claim() -> Claim | None:
    """Return who has the device in this process, None if nobody."""
    return _claim


def last_failure() -> tuple[Plan | None, tuple[Defect, ...]] | None:
    """Return the last attempt that claimed nothing, and why; None if there was none."""
    return _failure


def is_registered() -> bool:
    """Return whether a device is registered and usable."""
    return _claim is not None and not _claim.defects


def backend_name() -> str | None:
    """Return the registered device's name, None without one."""
    return _claim.plan.device_name if _claim is not None and is_registered() else None


def register_backend(backend: PrivateUse1Backend) -> None:
    """Register a device under `backend.name`, for the rest of the process.

    Raises BackendError with every defect, each with its remedy, and then leaves nothing registered. A second
    registration raises too: torch has one such device per process.
    """
    if not isinstance(backend, PrivateUse1Backend):
        raise TypeError(f"register_backend: backend is a {type(backend).__name__}, want a PrivateUse1Backend")
    plan = Plan(backend, open_library(backend.provider), backend.name, "register_backend")
    with _lock:
        _claim_plan(plan)


def claim_chosen() -> str | None:
    """Claim the provider that TEFL_PROVIDER names, else the only installed one, unless one is claimed.

    Returns the device's name; None where there is nobody to claim, or several and none is named. Raises
    BackendError.
    """
    with _lock:
        if _claim is None and not _claiming and (plan := plan_chosen()) is not None:
            _claim_plan(plan)
        return names.claimed_name()


def autoload() -> None:
    """Do `claim_chosen` from within ``import torch``: never raises, warns instead, and acts once.

    A provider that fails its checks still gets its name, with a device module whose use raises the defects.
    """
    global _autoloaded
    with _lock:
        if _autoloaded or _claiming or _claim is not None:
            return
        _autoloaded = True
        try:
            plan = plan_chosen(warn_if_ambiguous=True)
            if plan is not None:
                _claim_plan(plan)
        except BackendError as error:
            _claim_broken(error.defects)
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def choice() -> discovery.Choice:
    """Return who is to be claimed in this process, by TEFL_PROVIDER and what is installed."""
    setting = _env.get("TEFL_PROVIDER")
    built_in = discovery.built_in_candidates()
    # What is installed is looked for only where it matters: that reads files.
    needed = setting is None or discovery.names_an_installed_one(setting, built_in)
    return discovery.choose(setting, built_in, discovery.installed_candidates() if needed else [])


def plan_chosen(*, warn_if_ambiguous: bool = False) -> Plan | None:
    """Return the plan for the chosen provider, None where nobody is chosen. Raises BackendError."""
    global _failure
    chosen = choice()
    if chosen.defect is not None:
        _failure = (None, (chosen.defect,))
        raise BackendError("no device is registered", [chosen.defect])
    if chosen.candidate is None:
        if chosen.ambiguous and warn_if_ambiguous:
            warnings.warn(
                f"{chosen.reason}. Set TEFL_PROVIDER to one, or to none", RuntimeWarning, stacklevel=2
            )
        return None
    return _plan(chosen.candidate, chosen.reason)


def _plan(candidate: discovery.Candidate, origin: str) -> Plan:
    try:
        backend = candidate.load()
    except Exception as error:  # noqa: BLE001  a vendor's code may raise anything; the defect tells it
        defect = Defect(
            f"the provider {candidate.name!r} of {candidate.source} cannot be loaded: {one_line(error)}",
            "repair or uninstall that package, or set TEFL_PROVIDER=none",
        )
        logger().debug("loading the provider %r failed", candidate.name, exc_info=True)
        backend = PrivateUse1Backend(candidate.name, candidate.source)
        library = unusable_library(candidate.source, [defect])
    else:
        library = open_library(backend.provider)
    device_name = _env.get("TEFL_DEVICE_NAME") or backend.name or library.name or ""
    return Plan(backend, library, device_name, origin)


# --------------------------------------------------------------------------------------------- the claim --


def _claim_plan(plan: Plan) -> None:
    """Check everything, then claim. Under the lock."""
    global _claim, _claiming, _failure
    _claiming = True
    try:
        defects = _slot_defects(plan) or plan.defects()
        if defects:
            raise BackendError(_subject(plan), defects)
        _kept_libraries.extend(_register_kernels(plan))
        _take_name(plan)
        _claim = Claim(plan)
        _failure = None
    except BackendError as error:
        _failure = (plan, error.defects)
        raise
    finally:
        _claiming = False
    _register_ccl(plan)


def _subject(plan: Plan) -> str:
    # A library named by its path that does not load could not tell what the device is called.
    device = f"the device {plan.device_name!r}" if plan.device_name else "the device"
    return f"{device} of provider {plan.library.path} cannot be registered"


def _slot_defects(plan: Plan) -> list[Defect]:
    """Return why the one PrivateUse1 slot is not free; empty if it is."""
    taken = names.claimed_name()
    if taken is None:
        return []
    if _claim is None:
        what = f"another package has claimed the device as {taken!r}: {plan.device_name!r} comes too late"
        return [Defect(what, "uninstall one of the two, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0")]
    first = _claim.plan
    what = (
        f"{taken!r} (provider {first.library.path}, by {first.origin}) is the device of this process, "
        f"{plan.device_name!r} (provider {plan.library.path}) comes second: torch has one such device"
    )
    remedy = (
        f"use the device {taken!r}, or set TEFL_PROVIDER=none, so that nothing is claimed on import, and "
        "make your register_backend the first"
    )
    return [*(_claim.defects), Defect(what, remedy)]


def _register_kernels(plan: Plan) -> list[Library]:
    """Run the backend's register_kernels and look for the mandatory kernels; all or nothing.

    Returns the Library objects to keep alive.
    """
    recorder = KernelRecorder()
    returned: list[Library] = []
    try:
        with tefl.dispatch.get_registry().transaction():
            returned = _call_register_kernels(plan)
            _check_kernels(plan)
    except BaseException:
        recorder.undo(returned)
        raise
    return returned


def _call_register_kernels(plan: Plan) -> list[Library]:
    if plan.backend.register_kernels is None:
        return []
    try:
        returned = plan.backend.register_kernels()
    except Exception as error:
        defect = Defect(
            f"register_kernels raised {one_line(error)}", "see the traceback above; nothing it did was kept"
        )
        raise BackendError(_subject(plan), [defect]) from error
    things = returned if isinstance(returned, Iterable) else [returned]
    return [thing for thing in things if isinstance(thing, Library)]


def _check_kernels(plan: Plan) -> None:
    native = _native.load()
    alias = plan.library.alias or "none"
    # A vendor that brings no kernels at all gets every operator by copies; one that does brings these first.
    judged = plan.backend.register_kernels is not None
    if judged and (defects := kernel_defects(alias, lambda op: native.has_kernel(op, "PrivateUse1"))):
        raise BackendError(_subject(plan), defects)


def _take_name(plan: Plan) -> None:
    """Make the device torch's. From here on nothing may fail."""
    native, name = _native.load(), plan.device_name
    if graph_was_recorded():
        warnings.warn(
            f"{name!r} is claimed after this thread has recorded an autograd graph: if a backward has run, "
            f"no backward on {name!r} can, for torch counts devices at the first. Claim before, on import",
            RuntimeWarning,
            stacklevel=2,
        )
    native.claim(plan.library.handle, name)
    native.set_patience(_env.get("TEFL_SYNC_TIMEOUT"))
    native.on_first_fallback(fallback_table.notice)
    _name_device(name, module.build(name, plan.backend.default_autocast_dtype))
    tefl.dispatch.set_active_provider(
        name=plan.library.name or name, device_name=name, alias=plan.library.alias or "none", arch=_arch
    )


def _name_device(name: str, device_module: ModuleType) -> None:
    """Give torch's PrivateUse1 device its name, its module, and the methods of tensors and modules."""
    rename_privateuse1_backend(name)
    module.publish(name, device_module)
    generate_methods_for_privateuse1_backend(for_storage=True)


def _arch(index: int) -> tuple[int, int] | None:
    """Return the architecture number of a device, None if it has none."""
    arch = module.get_device_capability(index)
    return None if arch == (0, 0) else arch


def _register_ccl(plan: Plan) -> None:
    global _failure
    try:
        if plan.backend.register_ccl is not None:
            plan.backend.register_ccl()  # first, so that a vendor's own process group is the default
    except Exception as error:
        defect = Defect(
            f"register_ccl raised {one_line(error)}",
            "the device works, collectives on it do not: see the traceback",
        )
        _failure = (plan, (defect,))
        subject = f"the device {plan.device_name!r} is registered without collectives"
        raise BackendError(subject, [defect]) from error
    process_group.register(plan.device_name, plan.library.alias or "none")


def _native_or_none() -> ModuleType | None:
    """Return the compiled part; None where it cannot be loaded, which then is among the defects."""
    try:
        return _native.load()
    except ImportError:
        return None


def _claim_broken(defects: tuple[Defect, ...]) -> None:
    """Give a failed provider its name all the same, so that using the device says what is wrong."""
    global _claim, _failure
    plan = _failure[0] if _failure is not None else None
    if plan is None or names.claimed_name() is not None or names.device_name_defects(plan.device_name):
        return
    error = BackendError(_subject(plan), defects)
    if (native := _native_or_none()) is not None:
        native.install_unusable(str(error))
    _name_device(plan.device_name, module.build_broken(plan.device_name, error))
    _claim, _failure = Claim(plan, defects), None
