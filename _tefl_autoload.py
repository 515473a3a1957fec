"""What ``import torch`` runs of tefl, through the entry point group ``torch.backends``.

It must never make ``import torch`` fail and must cost next to nothing, so it imports only os until there is
something to do, and turns every error into a warning.
"""

import os


def autoload() -> None:
    """tefl's own hook: acts where TEFL_PROVIDER says who is to be claimed."""
    if os.environ.get("TEFL_PROVIDER"):
        _claim("tefl")


def claim(name: str) -> None:
    """Call this from a provider package's hook; `name` is its entry point in the group ``tefl.providers``.

    Claims the device for whoever is chosen: TEFL_PROVIDER, else the only installed provider. Hooks run in any
    order, possibly while tefl is half imported; the first call acts, the others do nothing.
    """
    if os.environ.get("TEFL_PROVIDER") != "none":
        _claim(name)


def _claim(hook: str) -> None:
    try:
        from tefl.privateuse1 import broker

        broker.autoload()
    except Exception as error:  # noqa: BLE001  an exception here would make `import torch` fail
        import warnings

        warnings.warn(
            f"tefl: the device of {hook!r} is not available: {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
