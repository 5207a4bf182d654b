"""Plugins: found by entry point, checked, isolated when broken, refused when they clash."""

import copy
import sys
from importlib.metadata import EntryPoint, distribution
from types import MappingProxyType, ModuleType

import pytest

from tfkit import PluginError, SpecError, load_catalogue, parse_spec
from tfkit.catalogue import BrokenPlugin
from tfkit.plugin import AttentionBackend, Capabilities, Norm, Options, hookimpl
from tfkit.plugin.model_parts import load

SPEC = """
tfkit: 1
name: small
defaults:
  {d_model: 8, vocab_size: 9, norm: layer_norm, placement: pre, attention: {num_heads: 2, backend: %s},
   ffn: {d_ff: 8, activation: relu}}
nodes:
  tokens: {kind: tokens}
  body: {kind: stack, input: tokens, num_layers: 1, causal: true}
outputs: [body]
"""


def backend(name: str, **fields: object) -> AttentionBackend:
    return AttentionBackend(name=name, summary="a test", attend="nowhere:attend", capabilities=Capabilities(), **fields)


def plugin(*entries: object, hook: str = "tfkit_attention_backends") -> ModuleType:
    def offer() -> list[object]:
        return list(entries)

    module = ModuleType("acme_attention")
    setattr(module, hook, hookimpl(offer))
    return module


def diagnostic_of(error: pytest.ExceptionInfo[PluginError]) -> tuple[str, str]:
    [diagnostic] = error.value.diagnostics
    return diagnostic.code, str(diagnostic)


def test_the_built_in_parts_come_by_entry_point():
    assert load_catalogue([]).names("backend") == []
    catalogue = load_catalogue()
    assert {"eager", "sdpa", "flex"} <= set(catalogue.names("backend"))
    assert catalogue.registered["backend"]["eager"].distribution == "tfkit-core"


def test_it_cannot_be_changed():
    catalogue = load_catalogue()
    assert isinstance(catalogue.registered, MappingProxyType)
    with pytest.raises(TypeError):
        catalogue.registered["backend"]["mine"] = None
    assert copy.deepcopy(catalogue) is catalogue


def test_a_plugin_is_found_by_name_and_knows_who_offers_it(catalogue):
    more = catalogue.with_plugin(plugin(backend("acme.flash")), "acme-attention")
    assert more.find("backend", "acme.flash").summary == "a test"
    assert more.registered["backend"]["acme.flash"].distribution == "acme-attention"
    assert catalogue.find("backend", "acme.flash") is None


def test_two_plugins_with_one_name_are_refused_by_both_names(catalogue):
    with pytest.raises(PluginError) as error:
        catalogue.with_plugin(plugin(backend("eager")), "acme-attention")
    code, text = diagnostic_of(error)
    assert code == "TFK052"
    assert "tfkit" in text
    assert "acme-attention" in text


def test_a_misspelt_hook_is_refused_with_the_right_name(catalogue):
    with pytest.raises(PluginError) as error:
        catalogue.with_plugin(plugin(hook="tfkit_atention_backends"), "acme-attention")
    code, text = diagnostic_of(error)
    assert code == "TFK051"
    assert "acme-attention implements `tfkit_atention_backends`" in text
    assert "did you mean `tfkit_attention_backends`?" in text


@pytest.mark.parametrize(
    ("entry", "piece"),
    [
        ("eager", "is not of type AttentionBackend"),
        (Norm(name="x", summary="", parameters=lambda options, width: (), build="a:b"), "is not of type AttentionBackend"),
        (backend("no good"), "cannot be written in a spec"),
        (backend("auto"), "a word of the spec language"),
        (backend("acme.x", options=dict), "not a subclass of tfkit.plugin.Options"),
        (backend("acme.x", contract=7), "contract 7"),
    ],
)
def test_an_entry_that_breaks_its_slot_is_refused(catalogue, entry, piece):
    with pytest.raises(PluginError) as error:
        catalogue.with_plugin(plugin(entry), "acme-attention")
    code, text = diagnostic_of(error)
    assert code == "TFK050"
    assert piece in text
    assert "acme-attention" in text


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A catalogue with the built-ins and a plugin that needs a package which is not there."""
    (tmp_path / "fused_broken.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [EntryPoint("builtin", "tfkit.builtin", "tfkit"), EntryPoint("fused", "fused_broken", "tfkit")]
    yield load_catalogue(points)
    sys.modules.pop("fused_broken", None)


def test_a_broken_plugin_breaks_nothing_else(broken):
    assert "eager" in broken.names("backend")
    [plugin] = broken.broken
    assert plugin.plugin == "fused"
    assert "a_package_that_is_not_there" in plugin.reason
    parse_spec(SPEC % "eager", broken)


def test_a_broken_plugin_is_an_error_with_its_reason_where_a_spec_asks_for_it(broken):
    with pytest.raises(SpecError) as error:
        parse_spec(SPEC % "fused", broken)
    assert "which failed to import because ModuleNotFoundError: No module named 'a_package_that_is_not_there'" in str(
        error.value
    )


def test_the_second_plugin_with_the_name_of_another_is_broken_and_both_distributions_are_named(tmp_path, monkeypatch):
    points = [EntryPoint("builtin", "tfkit.builtin", "tfkit")]
    for part in "ab":
        (tmp_path / f"acme_{part}.py").write_text("")
        info = tmp_path / f"acme_{part}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{part}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tfkit]\nacme = acme_{part}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    points += [point for part in "ab" for point in distribution(f"acme-{part}").entry_points]
    found = load_catalogue(points)
    assert [name for name, *_ in found.plugins] == ["builtin", "acme"]
    assert found.broken == (
        BrokenPlugin("acme", "acme-b", "its name is also that of a plugin of `acme-a`; uninstall one of them"),
    )
    assert "eager" in found.names("backend")


def test_a_hook_that_raises_is_a_broken_plugin(catalogue, tmp_path, monkeypatch):
    (tmp_path / "raising.py").write_text(
        "from tfkit.plugin import hookimpl\n\n\n@hookimpl\ndef tfkit_norms():\n    raise OSError('no licence')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [EntryPoint("builtin", "tfkit.builtin", "tfkit"), EntryPoint("raising", "raising", "tfkit")]
    [plugin] = load_catalogue(points).broken
    assert "no licence" in plugin.reason
    sys.modules.pop("raising")


def test_options_of_a_plugin_are_checked_by_its_own_model(catalogue):
    class Blocked(Options):
        block: int = 64

    more = catalogue.with_plugin(plugin(backend("acme.flash", options=Blocked)), "acme-attention")
    spec = parse_spec(SPEC % "{kind: acme.flash, block: 16}", more)
    assert spec.nodes["body"].options.layers[0].sublayers[0].options.backend[0].options.block == 16
    with pytest.raises(SpecError) as error:
        parse_spec(SPEC % "{kind: acme.flash, blok: 16}", more)
    assert "did you mean `block`?" in str(error.value)


def test_a_failed_import_of_a_function_is_reported_with_the_reason():
    with pytest.raises(PluginError) as error:
        load("no_such_module:attend")
    assert diagnostic_of(error)[0] == "TFK053"
    with pytest.raises(PluginError):
        load("tfkit.errors:no_such_name")


@pytest.mark.parametrize("answer", [None, "eager", backend("acme.alone")])
def test_a_hook_that_returns_no_list_is_refused(answer):
    module = ModuleType("acme_attention")
    module.tfkit_attention_backends = hookimpl(lambda: answer)
    with pytest.raises(PluginError) as error:
        load_catalogue([]).with_plugin(module, "acme")
    code, text = diagnostic_of(error)
    assert code == "TFK050"
    assert text.endswith(f"acme: tfkit_attention_backends: it returned {type(answer).__name__}, not a list; "
                         "return a list of AttentionBackend entries")  # fmt: skip


@pytest.mark.parametrize("place", ["import", "hook"])
def test_a_plugin_that_leaves_python_is_broken_and_ends_nothing(monkeypatch, place):
    def leave(*_):
        sys.exit(0)

    module = ModuleType("acme_attention")
    module.tfkit_attention_backends = hookimpl(leave)
    monkeypatch.setitem(sys.modules, "acme_attention", module)
    if place == "import":
        monkeypatch.setattr(EntryPoint, "load", leave)
    catalogue = load_catalogue([EntryPoint("acme", "acme_attention", "tfkit")])
    [broken] = catalogue.broken
    assert "SystemExit" in broken.reason


def test_the_reason_of_a_broken_plugin_is_one_line(monkeypatch):
    module = ModuleType("acme_attention")
    module.tfkit_attention_backends = hookimpl(lambda: [Capabilities(lsee=True)])
    monkeypatch.setitem(sys.modules, "acme_attention", module)
    [broken] = load_catalogue([EntryPoint("acme", "acme_attention", "tfkit")]).broken
    assert "lsee Extra inputs are not permitted" in broken.reason
    assert "\n" not in broken.reason


@pytest.mark.parametrize("axis", ["mask_terms", "bias_kinds", "bias_gradient"])
def test_a_capability_that_nothing_asks_for_is_a_slip_of_the_pen(axis):
    entry = AttentionBackend(name="acme.x", summary="s", attend="a:b", capabilities=Capabilities(**{axis: {"segment"}}))
    with pytest.raises(PluginError) as error:
        load_catalogue([]).with_plugin(plugin(entry), "acme")
    code, text = diagnostic_of(error)
    assert code == "TFK050"
    assert f"declares `segment` in `{axis}`" in text


@pytest.mark.parametrize("reference", ["acme.online.attend", "acme:", ":attend", "", "acme/online:attend"])
def test_code_is_named_module_and_function(reference):
    entry = AttentionBackend(name="acme.x", summary="s", attend=reference, capabilities=Capabilities())
    with pytest.raises(PluginError) as error:
        load_catalogue([]).with_plugin(plugin(entry), "acme")
    assert f'`attend` of `acme.x` is `{reference}`; code is named "module:function"' in diagnostic_of(error)[1]


def test_installed_plugins_are_collected_once_and_again_after_an_installation(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    first = load_catalogue()
    assert load_catalogue() is first
    info = tmp_path / "acme_late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tfkit]\nacme_late = acme_late\n")
    (tmp_path / "acme_late.py").write_text("")
    assert "acme_late" in {name for name, *_ in load_catalogue().plugins}
