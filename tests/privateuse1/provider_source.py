"""C sources of small provider libraries, right ones and wrong ones, made from the public header."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

HEADER = Path(__file__).parent.parent.parent / "csrc" / "include" / "tefl_provider.h"


def functions(table: str) -> list[str]:
    """Return the names of the functions of a table, in order."""
    body = re.search(rf"typedef struct {table} \{{(.*?)\n\}} {table};", HEADER.read_text(), re.S)
    assert body is not None
    return re.findall(r"\(\*(\w+)\)\(", body.group(1))


def provider_source(
    *,
    name: str = '"acme"',
    version: str = '"1.0"',
    alias: str = "TEFL_ALIAS_CPU",
    major: str = "TEFL_PROVIDER_ABI_MAJOR",
    minor: str = "TEFL_PROVIDER_ABI_MINOR",
    size: str = "sizeof(tefl_provider)",
    runtime: str = "&runtime",
    runtime_size: str = "sizeof(tefl_runtime)",
    launch: str = "0",
    ccl: str = "0",
    ccl_size: str = "sizeof(tefl_ccl)",
    last_error: str = "last_error",
    null: Collection[str] = (),
    table: str = "&provider",
) -> str:
    """Return the source of a library whose functions do nothing, except for what is asked to be wrong.

    `null` names functions to leave out; the others are C expressions for the fields they are called after.
    """
    runtime_fields = _fields("tefl_runtime", null)
    launch_fields = _fields("tefl_launch", null)
    ccl_fields = _fields("tefl_ccl", null)
    return f"""
        #include "tefl_provider.h"
        static tefl_status nothing(void) {{ return TEFL_OK; }}
        static tefl_status device_count(int32_t* count) {{ *count = 3; return TEFL_OK; }}
        static const char* last_error(void) {{ return ""; }}
        static const tefl_runtime runtime = {{ .size = {runtime_size}, {runtime_fields} }};
        static const tefl_launch launch = {{ .size = sizeof(tefl_launch), {launch_fields} }};
        static const tefl_ccl ccl = {{ .size = {ccl_size}, {ccl_fields} }};
        static const tefl_provider provider = {{
          .size = {size}, .abi_major = {major}, .abi_minor = {minor}, .name = {name}, .version = {version},
          .alias = {alias}, .last_error = {last_error}, .runtime = {runtime}, .launch = {launch},
          .ccl = {ccl},
        }};
        const tefl_provider* tefl_provider_get(void) {{
          (void)nothing; (void)device_count; (void)last_error; (void)runtime; (void)launch; (void)ccl;
          (void)provider;
          return {table};
        }}
        """


def _fields(table: str, null: Collection[str]) -> str:
    given = [name for name in functions(table) if name not in null]
    return ", ".join(
        f".{name} = {'device_count' if name == 'device_count' else '(void*)nothing'}" for name in given
    )
