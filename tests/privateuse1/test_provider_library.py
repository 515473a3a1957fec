"""Opening a provider's library: all that is wrong with it is found, at once, and nothing is started."""

from __future__ import annotations

import re

import pytest
from provider_source import functions, provider_source

from tefl.privateuse1.library import ProviderLibrary, open_library

SINCE_1_1 = ["host_access_begin", "host_access_end", "stream_describe"]
OPTIONAL = {"set_current_device", "host_malloc", "host_free", *SINCE_1_1}
MANDATORY = [name for name in functions("tefl_runtime") if name not in OPTIONAL]


def whats(library: ProviderLibrary) -> list[str]:
    assert library.handle is None
    assert all(defect.remedy for defect in library.defects)
    return [defect.what for defect in library.defects]


@pytest.fixture
def opened(compile_library, request):
    """A function: the fields to get wrong -> the library, opened."""

    def open_it(**wrong) -> ProviderLibrary:
        return open_library(compile_library("provider", provider_source(**wrong), "-w"))

    return open_it


def test_a_right_library_tells_its_facts(opened):
    library = opened()
    assert library.handle is not None
    assert library.defects == ()
    assert (library.name, library.version, library.abi, library.alias) == ("acme", "1.0", "1.1", "cpu")


@pytest.mark.parametrize(("constant", "alias"), [("NONE", "none"), ("CPU", "cpu"), ("CUDA", "cuda")])
def test_the_alias_is_told_in_words(opened, constant, alias):
    assert opened(alias=f"TEFL_ALIAS_{constant}").alias == alias


def test_a_built_in_provider_is_opened_by_its_name():
    library = open_library("sim")
    assert (library.name, library.alias, library.defects) == ("sim", "cpu", ())
    assert library.path.endswith("tefl_sim.so")


def test_a_missing_library_is_named_by_its_path(tmp_path):
    assert whats(open_library(tmp_path / "gone.so")) == [f"no provider library at '{tmp_path}/gone.so'"]


def test_a_file_that_is_no_library_is_told_with_the_loaders_reason(tmp_path):
    (tmp_path / "text.so").write_text("not a library")
    (what,) = whats(open_library(tmp_path / "text.so"))
    assert re.match(r"the provider library cannot be loaded: .*text\.so: file too short", what)


def test_a_library_without_the_entry_symbol_is_told_which_symbol(compile_library):
    library = open_library(compile_library("plain", "int answer(void) { return 42; }"))
    (what,) = whats(library)
    assert what.endswith("plain.so' has no symbol tefl_provider_get")
    assert "TEFL_PROVIDER_EXPORT" in library.defects[0].remedy


def test_a_library_whose_own_dependency_is_missing_is_told_so(compile_library):
    library = compile_library("undefined", "int other(void); int f(void) { return other(); }")
    (what,) = whats(open_library(library))
    assert "undefined symbol: other" in what


@pytest.mark.parametrize(
    ("major", "remedy"),
    [("0", "rebuild the provider"), ("2", "install a tefl that speaks the provider's ABI")],
)
def test_another_major_version_names_both_versions_and_reads_no_further(opened, major, remedy):
    library = opened(major=major, minor="4", name="0", runtime="0")
    (what,) = whats(library)
    assert f"was built for provider ABI {major}.4, this tefl speaks 1.1" in what
    assert remedy in library.defects[0].remedy


def test_a_newer_minor_version_is_taken(opened):
    assert opened(minor="9").abi == "1.9"


def test_a_table_that_grew_at_its_end_is_taken(opened):
    library = opened(size="sizeof(tefl_provider) + 64", runtime_size="sizeof(tefl_runtime) + 64")
    assert library.defects == ()


def test_a_null_table_is_told(opened):
    (what,) = whats(opened(table="0"))
    assert what.endswith("returned NULL")


def test_a_table_too_short_to_read_is_told_its_size(opened):
    assert whats(opened(size="8")) == ["tefl_provider.size is 8, at least 56 is needed"]


def test_a_short_runtime_lacks_the_functions_past_its_end(opened):
    last_three = MANDATORY[-3:]
    library = opened(runtime_size="offsetof(tefl_runtime, event_query)")
    assert [what.split()[0] for what in whats(library)] == [f"tefl_runtime.{name}" for name in last_three]
    assert all("is missing: the table's size is" in what for what in whats(library))


OLD_SIM = """
#include <dlfcn.h>
#include <string.h>
#include "tefl_provider.h"
const tefl_provider* tefl_provider_get(void) {
  static char table[offsetof(tefl_runtime, host_access_begin)]; /* as long as version 1.0's was */
  static tefl_provider provider;
  void* library = dlopen(SIM, RTLD_NOW | RTLD_LOCAL);
  provider = *((tefl_provider_get_fn)dlsym(library, "tefl_provider_get"))();
  memcpy(table, provider.runtime, sizeof(table));
  *(size_t*)table = sizeof(table);
  provider.runtime = (const tefl_runtime*)table;
  provider.abi_minor = 0;
  return &provider;
}
"""


def test_a_device_of_such_a_library_computes(compile_library, python):
    sim = open_library("sim").path
    library = compile_library("old_sim", OLD_SIM, f'-DSIM="{sim}"', "-ldl")
    assert (
        python(
            f"""
        import torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", {str(library)!r}))
        x = torch.ones(3, device="maca:1").add_(2)
        torch.maca.synchronize(1, timeout=60)
        print(x.sum().item())
        """
        )
        == "9.0"
    )


SILENT_SIM = """
#include <dlfcn.h>
#include "tefl_provider.h"
static const char* last_error(void) { return REASON; }
const tefl_provider* tefl_provider_get(void) {
  static tefl_provider provider;
  void* library = dlopen(SIM, RTLD_NOW | RTLD_LOCAL);
  provider = *((tefl_provider_get_fn)dlsym(library, "tefl_provider_get"))();
  provider.last_error = last_error;
  return &provider;
}
"""


@pytest.mark.parametrize("reason", ["0", '""'], ids=["NULL", "empty"])
def test_a_failure_without_a_reason_is_told_by_its_status(compile_library, python, reason):
    sim = open_library("sim").path
    library = compile_library(
        "silent_sim", f"#define REASON {reason}\n{SILENT_SIM}", f'-DSIM="{sim}"', "-ldl"
    )
    out = python(
        f"""
        import torch
        from tefl.privateuse1 import PrivateUse1Backend, register_backend
        register_backend(PrivateUse1Backend("maca", {str(library)!r}))
        for work in (lambda: torch.ones(3, device="maca"), torch.maca.synchronize):
            try:
                work()
            except RuntimeError as error:
                print(type(error).__name__, error)
        """,
        TEFL_SIM_FAULTS="malloc:1*,device_synchronize:1",
    ).splitlines()
    assert out[0].startswith("OutOfMemoryError maca out of memory. ")
    assert out[0].endswith("(status 3)")
    assert out[1].startswith("AcceleratorError maca: device_synchronize failed: status 5 (")


@pytest.mark.parametrize("name", MANDATORY)
def test_each_mandatory_function_is_missed(opened, name):
    assert whats(opened(null=[name])) == [f"tefl_runtime.{name} is NULL"]


def test_optional_functions_may_be_left_out(opened):
    assert opened(null=OPTIONAL).defects == ()


@pytest.mark.parametrize("pair", [("host_malloc", "host_free"), ("host_access_begin", "host_access_end")])
@pytest.mark.parametrize("missing", [0, 1])
def test_functions_that_belong_together_are_both_there_or_neither(opened, pair, missing):
    assert whats(opened(null=[pair[missing]])) == [f"tefl_runtime has only one of {pair[0]} and {pair[1]}"]


def test_a_library_compiled_before_the_last_functions_came_is_taken(opened):
    library = opened(minor="0", runtime_size="offsetof(tefl_runtime, host_access_begin)", null=SINCE_1_1)
    assert (library.abi, library.defects) == ("1.0", ())


def test_a_launch_table_is_complete_or_absent(opened):
    assert opened(launch="&launch").defects == ()
    assert whats(opened(launch="&launch", null=["launch"])) == ["tefl_launch.launch is NULL"]


@pytest.mark.parametrize("name", ["maca1", "Maca", "ma-ca", ""])
def test_a_provider_calls_itself_by_letters_and_underscores(opened, name):
    assert whats(opened(name=f'"{name}"')) == [f"tefl_provider.name is '{name}'"]


def test_all_defects_come_at_once(opened):
    library = opened(name="0", version="0", last_error="0", alias="7", runtime="0")
    assert whats(library) == [
        "tefl_provider.name is ''",
        "tefl_provider.version is NULL",
        "tefl_provider.last_error is NULL",
        "tefl_provider.alias is 7, which is no tefl_alias",
        "tefl_provider.runtime is NULL",
    ]


def test_opening_starts_no_runtime_and_claims_nothing(compile_library, python):
    source = provider_source(null=["init"]).replace(
        ".size = sizeof(tefl_runtime),", ".size = sizeof(tefl_runtime), .init = (void*)abort,"
    )
    library = compile_library("aborts", "#include <stdlib.h>\n" + source, "-w")
    assert (
        python(
            f"""
        import torch
        from tefl.privateuse1.library import open_library
        assert open_library({str(library)!r}).defects == ()
        print(torch._C._get_privateuse1_backend_name())
        """
        )
        == "privateuseone"
    )


@pytest.mark.parametrize("name", functions("tefl_ccl"))
def test_a_ccl_table_is_complete_or_absent(opened, name):
    library = opened(ccl="&ccl", null=[name])
    assert whats(library) == [f"tefl_ccl.{name} is NULL"]
    assert library.name == "acme"  # whatever else is wrong
    assert "set tefl_provider.ccl to NULL" in library.defects[0].remedy


def test_who_does_the_collectives_is_known(opened):
    assert opened(ccl="&ccl").ccl is True
    assert opened().ccl is False


def test_a_short_ccl_table_lacks_the_functions_past_its_end(opened):
    library = opened(ccl="&ccl", ccl_size="sizeof(tefl_ccl) - sizeof(void*)")
    assert whats(library)[0].startswith("tefl_ccl.destroy is missing: the table's size is ")


def test_a_provider_of_the_version_before_collectives_is_taken(opened):
    library = opened(
        minor="0", size="offsetof(tefl_provider, ccl)", ccl="(const tefl_ccl*)1", launch="&launch"
    )
    assert (library.defects, library.abi, library.ccl) == ((), "1.0", False)
