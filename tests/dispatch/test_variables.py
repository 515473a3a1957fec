"""Environment variables: what they accept, what they mean, and what is said about the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tefl
from tefl import _env
from tefl._errors import ConfigError
from tefl.dispatch.policy import current_policy

SetEnv = Callable[..., None]


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("TE_FL_PREFER", "vendor", "vendor"),
        ("TE_FL_PREFER", "Reference", "reference"),
        ("TE_FL_PREFER_VENDOR", "1", True),
        ("TE_FL_STRICT", "0", False),
        ("TE_FL_ALLOW_VENDORS", "nvidia,amd", ("nvidia", "amd")),
        ("TE_FL_DENY_VENDORS", " Vendor_A , CUDA ", ("vendor_a", "nvidia")),
        (
            "TE_FL_PER_OP",
            "rmsnorm_fwd=vendor:acme|flagos;rope_fwd=flagos|reference",
            {"rmsnorm_fwd": ("vendor:acme", "flagos"), "rope_fwd": ("flagos", "reference")},
        ),
        (
            "TE_FL_PER_OP",
            " op = impl:default.flagos | Vendor:CUDA ; ",
            {"op": ("impl:default.flagos", "vendor:nvidia")},
        ),
        ("TE_FL_PLUGIN_MODULES", "my_plugin,another.plugin", ("my_plugin", "another.plugin")),
        ("TE_FL_SKIP_CUDA", "1", True),
        ("TEFL_LOG_LEVEL", "debug", "DEBUG"),
        ("TEFL_SIM_DEVICES", "4", 4),
        ("TEFL_SIM_CAPACITY", "64M", 64 * 2**20),
        ("TEFL_SIM_CAPACITY", "4096", 4096),
        ("TEFL_SIM_FAULTS", "malloc:100,stream_sync:3*", "malloc:100,stream_sync:3*"),
        ("TEFL_SYNC_TIMEOUT", "2.5", 2.5),
        ("TEFL_SYNC_TIMEOUT", "30", 30.0),
    ],
)
def test_each_form_is_read(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, value: object) -> None:
    monkeypatch.setenv(variable, text)
    assert _env.get(variable) == value


@pytest.mark.parametrize(
    ("variable", "text", "bad", "accepted"),
    [
        ("TE_FL_PREFER", "cuda", "cuda", "flagos, vendor or reference"),
        ("TE_FL_PREFER_VENDOR", "yes", "yes", "1 or 0"),
        ("TE_FL_STRICT", "2", "2", "1 or 0"),
        ("TE_FL_ALLOW_VENDORS", ",", "''", "vendor names separated by commas"),
        ("TE_FL_ALLOW_VENDORS", "a,b c", "'b c'", "vendor names separated by commas"),
        ("TE_FL_DENY_VENDORS", "a,,b", "''", "vendor names separated by commas"),
        ("TE_FL_PER_OP", "rmsnorm_fwd", "rmsnorm_fwd", "op=token|token"),
        ("TE_FL_PER_OP", "a=flagos;b=fast|reference", "'b=fast|reference'", "vendor:NAME, impl:ID"),
        ("TE_FL_PER_OP", "a=flagos;a=reference", "'a=reference'", "each op once"),
        ("TE_FL_PER_OP", "a=", "a=", "op=token|token"),
        ("TE_FL_PER_OP", ";", ";", "op=token|token"),
        ("TE_FL_PLUGIN_MODULES", "my-plugin", "my-plugin", "module names separated by commas"),
        ("TE_FL_SKIP_CUDA", "true", "true", "1 or 0"),
        ("TEFL_LOG_LEVEL", "LOUD", "LOUD", "DEBUG, INFO, WARNING, ERROR"),
        ("TEFL_SIM_DEVICES", "0", "0", "a number from 1 to 64"),
        ("TEFL_SIM_DEVICES", "65", "65", "a number from 1 to 64"),
        ("TEFL_SIM_CAPACITY", "0", "0", "K, M or G"),
        ("TEFL_SIM_CAPACITY", "64MB", "64MB", "K, M or G"),
        ("TEFL_SIM_FAULTS", "malloc:1,free", "'free'", "function:n separated by commas"),
        ("TEFL_SYNC_TIMEOUT", "-1", "-1", "seconds"),
        ("TEFL_SYNC_TIMEOUT", "nan", "nan", "seconds"),
    ],
)
def test_what_cannot_be_read_is_quoted_with_the_variable_and_the_accepted_forms(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, bad: str, accepted: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as caught:
        _env.get(variable)
    message = str(caught.value)
    assert message.startswith(f"{variable}={text!r}")
    assert bad in message
    assert accepted in message


@pytest.mark.parametrize("variable", [name for name in _env.VARIABLES if name.startswith("TE")])
def test_an_empty_value_is_as_if_unset(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    default = _env.get(variable)
    monkeypatch.setenv(variable, "")
    assert _env.get(variable) == default


def test_prefer_beats_the_older_prefer_vendor(set_env: SetEnv) -> None:
    set_env(TE_FL_PREFER_VENDOR="1")
    assert current_policy().prefer == "vendor"
    set_env(TE_FL_PREFER="reference")
    assert current_policy().prefer == "reference"
    set_env(TE_FL_PREFER="", TE_FL_PREFER_VENDOR="0")
    assert current_policy().prefer == "flagos"


def test_the_variables_together_make_the_policy(set_env: SetEnv) -> None:
    set_env(
        TE_FL_PREFER="vendor",
        TE_FL_STRICT="1",
        TE_FL_ALLOW_VENDORS="nvidia,acme",
        TE_FL_DENY_VENDORS="zorg",
        TE_FL_PER_OP="op=reference",
    )
    assert current_policy() == tefl.SelectionPolicy(
        prefer="vendor",
        strict=True,
        per_op_order={"op": "reference"},
        deny_vendors=["zorg"],
        allow_vendors=["nvidia", "acme"],
    )


def test_an_order_is_stated_only_where_the_environment_states_one(set_env: SetEnv) -> None:
    set_env(TE_FL_STRICT="1")
    assert current_policy().order("op")[1] is False
    set_env(TE_FL_PREFER="flagos")
    assert current_policy().order("op")[1] is True


def test_a_bad_value_is_an_error_at_first_use_and_not_on_import(fresh_python) -> None:
    done = fresh_python(
        """
        import tefl
        print("imported")
        try:
            tefl.get_manager().resolve("rmsnorm_fwd")
        except ValueError as error:
            print(error)
        """,
        TE_FL_PER_OP="rmsnorm_fwd=vendor:acme|triton",
    )
    imported, error = done.stdout.splitlines()
    assert imported == "imported"
    assert "TE_FL_PER_OP='rmsnorm_fwd=vendor:acme|triton'" in error
    assert "accepted:" in error


@pytest.mark.parametrize(
    "variable",
    [
        "TE_FL_PREFER",
        "TE_FL_PREFER_VENDOR",
        "TE_FL_STRICT",
        "TE_FL_ALLOW_VENDORS",
        "TE_FL_DENY_VENDORS",
        "TE_FL_PER_OP",
        "TE_FL_PLUGIN_MODULES",
        "TE_FL_SKIP_CUDA",
    ],
)
def test_every_variable_is_read_at_first_use_whether_it_matters_there_or_not(
    set_env: SetEnv, manager, add, op: str, variable: str
) -> None:
    add("reference.torch")
    set_env(**{variable: "!"})
    with pytest.raises(ConfigError, match=f"{variable}='!'"):
        manager.call(op)


def test_an_unknown_variable_of_ours_gets_one_warning_with_the_nearest_name(
    set_env: SetEnv, manager, add, op: str, warnings_in
) -> None:
    set_env(TE_FL_PREFERR="vendor")
    add("reference.torch")
    manager.call(op)
    manager.call(op)
    assert warnings_in("TE_FL_PREFERR") == [
        "environment variable TE_FL_PREFERR is unknown; the nearest known name is 'TE_FL_PREFER'"
    ]


@pytest.mark.parametrize(
    ("variables", "name", "nearest"),
    [
        ({"TE_FL_PER_OP": "{op}x=reference"}, "op '{op}x'", "'{op}'"),
        ({"TE_FL_DENY_VENDORS": "acmee"}, "vendor 'acmee'", "'acme'"),
        ({"TE_FL_ALLOW_VENDORS": "acmee"}, "vendor 'acmee'", "'acme'"),
        ({"TE_FL_PER_OP": "{op}=vendor:acmee|reference"}, "vendor 'acmee'", "'acme'"),
        (
            {"TE_FL_PER_OP": "{op}=impl:vendor.acmee|reference"},
            "implementation 'vendor.acmee'",
            "'vendor.acme'",
        ),
    ],
)
def test_a_name_that_nobody_registered_gets_one_warning_with_the_nearest_known(
    set_env: SetEnv, manager, add, op: str, warnings_in, variables: dict[str, str], name: str, nearest: str
) -> None:
    add("vendor.acme")
    add("reference.torch")
    set_env(**{variable: text.format(op=op) for variable, text in variables.items()})
    manager.call(op)
    manager.call(op, 1)
    (warning,) = warnings_in(name.format(op=op))
    assert warning.endswith(f"the nearest known name is {nearest.format(op=op)}")


def test_sources_say_where_each_value_comes_from_and_raise_nothing(set_env: SetEnv) -> None:
    set_env(TE_FL_PREFER="vendor", TE_FL_STRICT="maybe")
    settings = {setting.name: setting for setting in _env.sources()}
    assert list(settings) == list(_env.VARIABLES)
    assert (settings["TE_FL_PREFER"].value, settings["TE_FL_PREFER"].source) == ("vendor", "environment")
    assert settings["TE_FL_STRICT"].value == "maybe"
    assert "TE_FL_STRICT='maybe'" in (settings["TE_FL_STRICT"].error or "")
    assert settings["TEFL_LOG_LEVEL"].source == "default"
