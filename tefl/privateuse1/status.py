"""What the broker knows, as plain data for `python -m tefl info`."""

from __future__ import annotations

from typing import Any

from tefl import _native
from tefl._errors import ConfigError
from tefl.privateuse1 import broker, discovery, process_group
from tefl.privateuse1.checks import BackendError, Defect


def status() -> dict[str, Any]:
    """Return who has the device, or who would get it, and what is wrong. Starts no runtime, claims nothing.

    Keys: registered (bool), name (of the device), provider (its own name), version, path, abi
    ("major.minor"), alias ("cpu", "cuda", "none"), collectives (by whom, in words), origin (who asked for
    it), devices (how many), defects (a list of {"what", "remedy"}), candidates (a list of {"name", "kind",
    "source"}). Where nobody has the
    device, the chosen provider's library is opened and judged, and the facts are its.
    """
    plan, defects = _plan_and_defects()
    facts: dict[str, Any] = {
        "registered": broker.is_registered(),
        "name": (plan.device_name or None) if plan else None,
        "provider": plan.library.name if plan else None,
        "version": plan.library.version if plan else None,
        "path": plan.library.path if plan else None,
        "abi": plan.library.abi if plan else None,
        "alias": plan.library.alias if plan else None,
        "collectives": process_group.description(plan.library.alias, plan.library.ccl) if plan else None,
        "origin": plan.origin if plan else None,
        "devices": int(_native.load().device_count()) if broker.is_registered() else None,
    }
    facts["defects"] = [{"what": defect.what, "remedy": defect.remedy} for defect in defects]
    facts["candidates"] = _candidates()
    return facts


def _plan_and_defects() -> tuple[broker.Plan | None, list[Defect]]:
    if (claim := broker.current_claim()) is not None:
        return claim.plan, [*claim.defects, *_failed_since()]
    if (failure := broker.last_failure()) is not None:
        return failure[0], list(failure[1])
    try:
        plan = broker.plan_chosen()
    except BackendError as error:
        return None, list(error.defects)
    except ConfigError as error:
        return None, [Defect(str(error), "correct the variable")]
    return (plan, plan.defects()) if plan else (None, [])


def _failed_since() -> list[Defect]:
    failure = broker.last_failure()
    return list(failure[1]) if failure is not None else []


def _candidates() -> list[dict[str, str]]:
    found = [*discovery.built_in_candidates(), *discovery.installed_candidates()]
    return [{"name": each.name, "kind": each.kind, "source": each.source} for each in found]
