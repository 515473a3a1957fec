"""What `import torch` runs because this package is installed (entry point `torch.backends`).

Three rules keep it harmless, since an exception here would break `import torch` for everybody. It is a
module of its own, so that finding it imports no package. It imports nothing until it is called, when torch is
ready for that. And whatever goes wrong becomes a warning.
"""


def autoload() -> None:
    """Let tefl make the device named maca, unless the user has decided otherwise (TEFL_PROVIDER)."""
    try:
        import _tefl_autoload

        _tefl_autoload.claim("maca")
    except Exception as error:  # noqa: BLE001 - nothing at all may be raised into `import torch`
        import warnings

        message = f"the device 'maca' is not available: {type(error).__name__}: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
