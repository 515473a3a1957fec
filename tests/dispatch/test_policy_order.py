"""In which order a policy tries implementations, and which it rules out."""

from __future__ import annotations

import copy
import pickle

import pytest

import tefl
from tefl import BackendImplKind, OpImpl, SelectionPolicy
from tefl.dispatch.select import excluded, rank


def impl(impl_id: str, priority: int, vendor: str | None = None) -> OpImpl:
    kind = {"vendor": "vendor", "reference": "reference"}.get(impl_id.split(".")[0], "flagos")
    return OpImpl("op", impl_id, BackendImplKind(kind), print, vendor=vendor, priority=priority)


TRITON = impl("default.flagos", 150)
GEMS = impl("default.flaggems", 120)
CUDA = impl("vendor.cuda", 100, "nvidia")
ACME = impl("vendor.acme", 200, "Acme")
ZORG = impl("vendor.zorg", 200, "zorg")
TORCH = impl("reference.torch", 50)
ALL = [TORCH, ZORG, GEMS, CUDA, ACME, TRITON]


def order(policy: SelectionPolicy, op: str = "op") -> list[str]:
    return [candidate.impl_id for candidate in rank(op, ALL, policy)]


@pytest.mark.parametrize(
    ("prefer", "kinds"),
    [
        ("flagos", ["flagos", "vendor", "reference"]),
        ("vendor", ["vendor", "flagos", "reference"]),
        ("reference", ["reference", "flagos", "vendor"]),
    ],
)
def test_each_preference_has_its_order_of_kinds(prefer: str, kinds: list[str]) -> None:
    ranked = rank("op", ALL, SelectionPolicy(prefer=prefer))
    assert list(dict.fromkeys(candidate.kind.value for candidate in ranked)) == kinds


def test_flagos_is_preferred_by_default() -> None:
    assert SelectionPolicy().prefer == "flagos"
    assert order(SelectionPolicy())[0] == "default.flagos"


def test_within_a_kind_higher_priority_comes_first_and_equal_priorities_go_by_name() -> None:
    assert order(SelectionPolicy(prefer="vendor")) == [
        "vendor.acme",
        "vendor.zorg",
        "vendor.cuda",
        "default.flagos",
        "default.flaggems",
        "reference.torch",
    ]


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ("reference", ["reference.torch"]),
        ("vendor:acme|flagos", ["vendor.acme", "default.flagos", "default.flaggems"]),
        ("impl:default.flaggems|reference", ["default.flaggems", "reference.torch"]),
        ("vendor:CUDA", ["vendor.cuda"]),
        ("Vendor:ACME", ["vendor.acme"]),
        ("vendor:zorg|vendor", ["vendor.zorg", "vendor.acme", "vendor.cuda"]),
        ("vendor:nobody", []),
    ],
)
def test_the_list_of_an_op_is_its_whole_order(given: str, tried: list[str]) -> None:
    policy = SelectionPolicy(prefer="vendor", per_op_order={"op": given})
    assert order(policy) == tried
    assert order(policy, "another_op") == order(SelectionPolicy(prefer="vendor"))


def test_an_order_may_be_given_as_a_list_of_tokens() -> None:
    assert order(SelectionPolicy(per_op_order={"op": ["reference", "impl:vendor.cuda"]})) == [
        "reference.torch",
        "vendor.cuda",
    ]


@pytest.mark.parametrize("name", ["acme", "ACME", "Acme"])
def test_a_denied_vendor_is_left_out_whatever_its_case_and_wherever_it_is_named(name: str) -> None:
    assert "vendor.acme" not in order(SelectionPolicy(deny_vendors=[name]))
    assert order(SelectionPolicy(deny_vendors=[name], per_op_order={"op": "impl:vendor.acme"})) == []


def test_allow_and_deny_lists_speak_of_vendors_only() -> None:
    assert order(SelectionPolicy(allow_vendors=["cuda"])) == [
        "default.flagos",
        "default.flaggems",
        "vendor.cuda",
        "reference.torch",
    ]
    assert order(SelectionPolicy(deny_vendors=["nvidia", "acme", "zorg"])) == [
        "default.flagos",
        "default.flaggems",
        "reference.torch",
    ]


def test_deny_beats_allow() -> None:
    assert "vendor.acme" not in order(SelectionPolicy(allow_vendors=["acme"], deny_vendors=["acme"]))


def test_an_empty_list_of_vendors_is_as_if_unset() -> None:
    assert order(SelectionPolicy(allow_vendors=(), deny_vendors=())) == order(SelectionPolicy())


def test_strict_with_a_stated_order_leaves_only_what_its_first_token_names() -> None:
    assert order(SelectionPolicy(strict=True, prefer="reference")) == ["reference.torch"]
    assert order(SelectionPolicy(strict=True, prefer="flagos")) == ["default.flagos", "default.flaggems"]
    strict = SelectionPolicy(strict=True, per_op_order={"op": "vendor:acme|reference"})
    assert order(strict) == ["vendor.acme"]


def test_strict_without_a_stated_order_leaves_the_default_order() -> None:
    assert order(SelectionPolicy(strict=True)) == order(SelectionPolicy())


@pytest.mark.parametrize(
    ("policy", "candidate", "reason"),
    [
        (SelectionPolicy(deny_vendors=["acme"]), ACME, "vendor 'Acme' is denied"),
        (
            SelectionPolicy(allow_vendors=["zorg", "nvidia"]),
            ACME,
            "vendor 'Acme' is not among the allowed ones, nvidia, zorg",
        ),
        (
            SelectionPolicy(per_op_order={"op": "vendor:acme|flagos"}),
            TORCH,
            "not in the order given for this op, vendor:acme|flagos",
        ),
        (
            SelectionPolicy(strict=True, prefer="vendor"),
            TORCH,
            "strict: the first of the order, 'vendor', must supply the implementation",
        ),
    ],
)
def test_what_a_policy_rules_out_has_a_reason(
    policy: SelectionPolicy, candidate: OpImpl, reason: str
) -> None:
    assert excluded("op", candidate, policy) == reason


@pytest.mark.parametrize(
    ("fields", "quoted"),
    [
        ({"prefer": "cuda"}, "prefer='cuda'"),
        ({"per_op_order": {"op": "vendor:"}}, "'vendor:'"),
        ({"per_op_order": {"op": "fast"}}, "'fast'"),
        ({"per_op_order": {"op": []}}, "per_op_order['op'] is empty"),
        ({"deny_vendors": "acme"}, "deny_vendors='acme'"),
        ({"deny_vendors": None}, "deny_vendors=None"),
        ({"deny_vendors": [None]}, "deny_vendors=[None]"),
        ({"allow_vendors": ["acme", " "]}, "allow_vendors=['acme', ' ']"),
        ({"per_op_order": {"op": [None]}}, "per_op_order['op']=[None]"),
        ({"per_op_order": {"op": 3}}, "per_op_order['op']=3"),
        ({"per_op_order": {3: "flagos"}}, "per_op_order[3]"),
        ({"per_op_order": [("op", "flagos")]}, "per_op_order=[('op', 'flagos')]"),
        ({"strict": "no"}, "strict='no'"),
        ({"strict": None}, "strict=None"),
    ],
)
def test_a_policy_that_cannot_be_read_is_refused_with_the_part_quoted(fields: dict, quoted: str) -> None:
    with pytest.raises(ValueError) as caught:
        SelectionPolicy(**fields)
    assert quoted in str(caught.value)


def test_policies_that_decide_alike_are_equal() -> None:
    one = SelectionPolicy(deny_vendors=["CUDA", "acme"], per_op_order={"op": "flagos|vendor:CUDA"})
    other = SelectionPolicy(deny_vendors={"nvidia", "ACME"}, per_op_order={"op": ["flagos", "vendor:nvidia"]})
    assert one == other
    assert hash(one) == hash(other)
    assert one != SelectionPolicy()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prefer": "flagos"},
        {"prefer": "vendor", "strict": True, "per_op_order": {"op": "flagos|vendor:CUDA"}},
        {"deny_vendors": ["acme"], "allow_vendors": ["zorg"]},
    ],
)
def test_a_policy_can_be_copied_and_sent_to_another_process(copied, fields: dict) -> None:
    policy = SelectionPolicy(**fields)
    assert copied(policy) == policy
    assert copied(policy).order("other") == policy.order("other")


def test_only_a_policy_can_be_made_global() -> None:
    with pytest.raises(TypeError, match=r"must be a tefl\.SelectionPolicy, got 'vendor'"):
        tefl.set_global_policy("vendor")  # type: ignore[arg-type]
