"""Sites folded."""

import pytest

from fixtures import SPECS
from tfkit import BuildError, graph_of, load_spec
from tfkit.view.sites import all_sites, fold


def names(groups):
    return [group.name for group in groups]


def test_equal_layers_of_a_stack_are_one_group(described):
    _, graph = described("transformer-base.yaml")
    groups = fold(all_sites(graph).items())
    assert names(groups) == ["encoder.0-5.self_attention", "decoder.0-5.self_attention", "decoder.0-5.cross_attention"]
    assert groups[2].sites == tuple(f"decoder.{index}.cross_attention" for index in range(6))


def test_layers_in_turn_are_a_group_each(described):
    _, graph = described("gemma2-9b.yaml")
    groups = fold(all_sites(graph).items())
    assert names(groups) == ["body.0,2,..,40.self_attention", "body.1,3,..,41.self_attention"]
    assert [len(group.sites) for group in groups] == [21, 21]


def test_named_sublayers_and_other_stacks_stay_apart(described):
    _, graph = described("multi-source.yaml")
    assert names(fold(all_sites(graph).items())) == [
        "encoder.0-5.self_attention",
        "other.0-2.self_attention",
        "decoder.0-5.self_attention",
        "decoder.0-5.to_source",
        "decoder.0-5.to_second",
    ]


def test_names_of_another_shape_stand_alone(described):
    _, graph = described("gpt2.yaml")
    site = next(iter(all_sites(graph).values()))
    groups = fold([("memory", site), ("a.b", site), ("a.1.x.y", site), ("a.2.x.y", site), ("a.x.1", site)])
    assert names(groups) == ["memory", "a.b", "a.1-2.x.y", "a.x.1"]


def test_requested_backends_replace_those_of_every_site_only(described, catalogue):
    from tfkit.commands import requested_backends_of

    _, graph = described("transformer-base.yaml")
    plain, wished = all_sites(graph), all_sites(graph, requested_backends_of(["flex", "eager"], catalogue))
    assert {tuple(part.kind for part in site.backend) for site in wished.values()} == {("flex", "eager")}
    assert {name: site.mask_terms for name, site in plain.items()} == {name: site.mask_terms for name, site in wished.items()}


def test_too_many_are_refused(catalogue):
    def sites(layers):
        return all_sites(
            graph_of(load_spec(SPECS / "gpt2.yaml", catalogue, [f"nodes.body.num_layers={layers}", "expect=null"]))
        )

    assert len(sites(20_000)) == 20_000
    with pytest.raises(BuildError, match=r"TFK045 there are more than 20,000 attention sites"):
        sites(20_001)
