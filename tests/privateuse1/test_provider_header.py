"""The public header is all that a vendor compiles against: plain C and C++, without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HEADERS = Path(__file__).parent.parent.parent / "csrc" / "include"

USE = """
#include "tefl_provider.h"
static const tefl_provider table = {sizeof(tefl_provider), TEFL_PROVIDER_ABI_MAJOR, TEFL_PROVIDER_ABI_MINOR,
                                    "acme", "1.0", TEFL_ALIAS_CPU, 0, 0, 0, 0};
const tefl_provider* tefl_provider_get(void) { return &table; }
"""


@pytest.mark.parametrize(
    ("compiler", "suffix", "standard"),
    [("gcc", "c", "c99"), ("gcc", "c", "c17"), ("g++", "cpp", "c++11"), ("g++", "cpp", "c++20")],
)
def test_the_header_compiles_without_a_warning(tmp_path, compiler, suffix, standard):
    source = tmp_path / f"provider.{suffix}"
    source.write_text(USE)
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{HEADERS}"]
    done = subprocess.run(
        [compiler, *flags, "-c", str(source), "-o", str(tmp_path / "out.o")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_header_includes_only_the_c_standard_library():
    lines = (HEADERS / "tefl_provider.h").read_text().splitlines()
    includes = {line.split()[1] for line in lines if line.startswith("#include")}
    assert includes == {"<stddef.h>", "<stdint.h>"}
