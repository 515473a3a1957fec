"""Use an implementation from a plugin package, found in either of two ways.

    TE_FL_PLUGIN_MODULES=my_vendor_plugin python examples/example_outtree.py    # named in the environment
    pip install examples/my_vendor_plugin && python examples/example_outtree.py # found by its entry point

Started without either, it names the plugin beside it in the environment itself.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import torch

import tefl


def main() -> None:
    """Call the op as any user would: nothing here names the plugin's functions."""
    if not any(entry.value.startswith("my_vendor_plugin") for entry in entry_points(group="te_fl.plugin")):
        sys.path.append(str(Path(__file__).parent / "my_vendor_plugin"))
        os.environ.setdefault("TE_FL_PLUGIN_MODULES", "my_vendor_plugin")

    input, weight = torch.randn(4, 64), torch.ones(64)
    with tefl.with_preference("vendor"), tefl.record() as calls:
        output, rsigma = torch.ops.tefl.rmsnorm_fwd(input, weight)
    print(f"output {tuple(output.shape)}, rsigma {tuple(rsigma.shape)}")
    for (op, impl_id, device), count in calls.items():
        print(f"{op} on {device}: {impl_id} x{count}")
    for plugin in tefl.get_manager().plugins:
        print(f"plugin {plugin.name} by {plugin.source}: {plugin.state}")


if __name__ == "__main__":
    main()
