"""The spec of a recipe, completed from its tokenisers: vocabulary sizes, and special ids that the spec does not set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..builder import build
from ..catalogue import Catalogue
from ..data import KINDS, Roles, TextTokeniser, check_ids, check_special_ids, fits, roles_of
from ..errors import Diagnostic, InputError
from ..io.alignment_site import ALIGNMENT, AlignmentSite, alignment_site_text
from ..nn.model import Model
from ..nn.model_plan import ModelPlan
from ..recipe import GuidedAlignment, Recipe, check_packing, rows_with_links
from ..slots.node import ImageRule
from ..spec import ModelSpec, load_spec
from ..text.alignment import alignment_site
from .lora import check_lora, check_targets
from .optimiser import check_parameters
from .scheduled_sampling import is_stepwise
from .vectors import check_nodes, check_widths


def roles_in(recipe: Recipe, catalogue: Catalogue, backend: Any = None) -> Roles:
    """The roles of the nodes of a recipe's model. Raises SpecError, also for an unknown `backend`, and InputError."""
    return roles_of(_plan(_spec(recipe, catalogue, []), catalogue, backend), recipe.data.kind)


def fitting_kind(recipe: Recipe, catalogue: Catalogue, kinds: Sequence[str]) -> str:
    """The first of some kinds of data that fits a recipe's model, or the last one. Raises SpecError."""
    plan = _plan(_spec(recipe, catalogue, []), catalogue)
    return next((kind for kind in kinds if fits(plan, kind)), kinds[-1])


def image_rule_in(recipe: Recipe, catalogue: Catalogue) -> ImageRule:
    """The images that a recipe's model takes. Raises InputError for a model of text."""
    plan = _plan(_spec(recipe, catalogue, []), catalogue)
    rule = plan.inputs[roles_of(plan, recipe.data.kind).target]
    assert isinstance(rule, ImageRule), "the roles of images are those of an input of images"
    return rule


def fitted_length(recipe: Recipe, positions: Mapping[str, int]) -> Recipe:
    """The recipe with a `batching.max_length` of at most the positions of the model, unless the recipe sets it."""
    longest = max(2, min(positions.values(), default=recipe.batching.max_length))  # a row has a token and the end token
    if longest >= recipe.batching.max_length or "max_length" in recipe.batching.model_fields_set:
        return recipe
    return recipe.model_copy(update={"batching": recipe.batching.model_copy(update={"max_length": longest})})


def positions_in(recipe: Recipe, catalogue: Catalogue, backend: Any = None) -> dict[str, int]:
    """The maximum length of the inputs of a recipe's model, by column of the data, if there is one. Raises as `roles_in`."""
    plan = _plan(_spec(recipe, catalogue, []), catalogue, backend)
    nodes = {column: roles_of(plan, recipe.data.kind).of(column) for column in KINDS[recipe.data.kind].files}
    return {column: plan.max_input_lengths[node] for column, node in nodes.items() if node in plan.max_input_lengths}


def check_weights(recipe: Recipe, roles: Roles) -> None:
    """Raises InputError if `loss.weights` names an output that is not trained."""
    unknown = [name for name in recipe.loss.weights or () if name not in roles.outputs]
    if unknown:
        message = f"`{unknown[0]}` is no output that is trained"
        fix = f"outputs that are trained with data of kind `{recipe.data.kind}`: {', '.join(roles.outputs)}"
        raise InputError(recipe.diagnostic("TFK112", f"loss.weights.{unknown[0]}", message, fix))


def check_trained(recipe: Recipe, catalogue: Catalogue) -> None:
    """Raises InputError if settings of a recipe do not fit its model, or its files of vectors."""
    check_lora(recipe)
    spec = _spec(recipe, catalogue, [])
    check_widths(recipe, check_model(recipe, spec, catalogue))


def check_model(recipe: Recipe, spec: ModelSpec, catalogue: Catalogue) -> Model:
    """The model of a recipe, without storage. Raises InputError if the kind of data, `loss`, `parameters`, `lora`, `vectors`,
    `batching.pack` or the vocabularies do not fit it. No file is read."""
    model = build(spec, catalogue, device="meta")
    roles = roles_of(model.plan, recipe.data.kind)
    check_weights(recipe, roles)
    check_parameters(recipe, model)
    check_targets(recipe, model)
    check_nodes(recipe, model)
    check_packing(recipe, model.plan.refused)
    alignment_in(recipe, model, roles)
    if recipe.pretrained is None and recipe.data.kind != "images":  # its tokenisers are compared first
        _check_joint(recipe, spec, roles)
        check_special_ids(model.plan, roles, KINDS[recipe.data.kind].files)
    return model


def _check_joint(recipe: Recipe, spec: ModelSpec, roles: Roles) -> None:
    """Raises InputError if `tokeniser.joint` does not fit the tables of tokens or the kind of data."""
    columns = () if recipe.data.kind == "images" else tuple(KINDS[recipe.data.kind].files)
    several = len(columns) > 1
    if several and not recipe.tokeniser.options.joint and len({_owner(spec, roles.of(column)) for column in columns}) == 1:
        message = "source and target share one table of tokens, and the recipe has a vocabulary for each"
        raise InputError(
            recipe.diagnostic("TFK106", "tokeniser.joint", message, "write `joint: true`, or `share: null` in the spec")
        )
    if len(columns) == 1 and not recipe.pretrained and recipe.written_keys("tokeniser").get("joint") is False:
        message = f"data of kind `{recipe.data.kind}` have one text, and so one vocabulary"
        raise InputError(recipe.diagnostic("TFK106", "tokeniser.joint", message, "leave `joint` out"))


def guided_alignment(recipe: Recipe) -> GuidedAlignment:
    """How links of words are learnt."""
    return recipe.loss.alignment or GuidedAlignment()


def alignment_in(recipe: Recipe, model: Model, roles: Roles) -> AlignmentSite | None:
    """The cross-attention that learns the links of words of a recipe, or that validation compares with them: then the mean over
    the heads of the last layer but one. None for data without links. Raises InputError if the model has no such site."""
    linked = rows_with_links(recipe)
    if not (linked.train or linked.validation):
        return None
    guided = guided_alignment(recipe)
    try:
        return alignment_site(model, roles.target, guided.site, guided.head if linked.train else None)
    except InputError as error:
        first = error.diagnostics[0]
        place = "loss.alignment" if recipe.loss.alignment is not None else linked.key
        raise InputError(recipe.diagnostic(first.code, place, first.message, first.fix)) from None


def learnt_alignment(recipe: Recipe, site: AlignmentSite | None) -> dict[str, str]:
    """The file of a saved model that names the head which learns to align, by its name; none if no head does."""
    learns = site is not None and rows_with_links(recipe).train
    return {ALIGNMENT: alignment_site_text(site)} if site is not None and learns else {}


def check_sharded_sampling(recipe: Recipe, catalogue: Catalogue) -> None:
    """Raises InputError if FSDP2 cannot run the scheduled sampling of a recipe, because the decoder is recurrent."""
    model = build(_spec(recipe, catalogue, []), catalogue, device="meta")
    if is_stepwise(model, roles_of(model.plan, recipe.data.kind)):
        message = "a recurrent decoder predicts its input tokens step by step, which FSDP2 cannot do"
        raise InputError(recipe.diagnostic("TFK118", "teacher_forcing", message, "remove `--fsdp`"))


def fitted_spec(
    recipe: Recipe, catalogue: Catalogue, roles: Roles, tokenisers: Mapping[str, TextTokeniser], classes: int
) -> tuple[ModelSpec, list[str]]:
    """Complete the spec of a recipe, for these tokenisers by column and number of classes, 0 unless it is a classification.
    Returns it with the changes in the form of `--set`. Raises InputError if the spec sets other special ids than the tokenisers
    have."""
    spec = _spec(recipe, catalogue, [])
    plan = _plan(spec, catalogue)
    _check_joint(recipe, spec, roles)
    sizes = {column: tokeniser.size for column, tokeniser in tokenisers.items()}
    changes = _vocabularies(spec, plan, roles, sizes) if not classes else _classes(spec, plan, roles, sizes, classes)
    for output in roles.others.values():  # two classes: whether a text follows another
        if plan.widths[output] != 2:
            changes.append(f"nodes.{output}.classes=2")
    for column, tokeniser in tokenisers.items():
        node = roles.of(column)
        rule = plan.token_rule(node)
        decoded = node == roles.target and roles.source is not None
        if decoded and rule.start_id is None and tokeniser.imported:
            message = f"`{node}` has no `start_id`, and an imported tokeniser does not say how a target starts"
            raise InputError(Diagnostic("TFK106", message, "write `start_id` as in the spec of the imported model"))
        written = {"pad_id": rule.pad_id, "end_id": rule.end_id, **({"start_id": rule.start_id} if decoded else {})}
        ids = tokeniser.node_ids
        changes += [
            f"nodes.{node}.{name}={ids[name]}" for name, token_id in written.items() if token_id is None and name in ids
        ]
    if recipe.activation_checkpointing:
        stacks = [name for name, node in spec.nodes.items() if "checkpoint" in type(node.options).model_fields]
        changes += [f"nodes.{name}.checkpoint=true" for name in stacks]
    spec = _spec(recipe, catalogue, changes)
    check_ids(_plan(spec, catalogue), roles, tokenisers)
    return spec, changes


def _classes(spec: ModelSpec, plan: ModelPlan, roles: Roles, sizes: Mapping[str, int], classes: int) -> list[str]:
    """The changes for the size of the token table, if there is one, and the number of classes."""
    changes = [] if plan.widths[roles.output] == classes else [f"nodes.{roles.output}.classes={classes}"]
    if "target" not in sizes:
        return changes
    owner = _owner(spec, roles.target)
    if spec.nodes[owner].options.vocab_size != sizes["target"]:
        changes.append(f"{spec.written_path(f'nodes.{owner}.vocab_size')}={sizes['target']}")
    return changes


def _vocabularies(spec: ModelSpec, plan: ModelPlan, roles: Roles, sizes: Mapping[str, int]) -> list[str]:
    """The changes for the sizes of the token tables. They are at the place of the written size, or at the nodes if one line of
    the spec sets tables whose sizes now differ."""
    required = {_owner(spec, roles.of(column)): size for column, size in sizes.items()}
    if getattr(spec.nodes[roles.output].options, "share", "") is None:
        required[roles.output] = sizes["target"]
    written = {node: spec.written_path(f"nodes.{node}.vocab_size") for node in required}
    changes: dict[str, str] = {}
    for node, size in required.items():
        if spec.nodes[node].options.vocab_size == size:
            continue
        sizes_here = {required[other] for other, path in written.items() if path == written[node]}
        if len(sizes_here) > 1:
            changes[written[node]] = "null"
        changes[written[node] if len(sizes_here) == 1 else f"nodes.{node}.vocab_size"] = str(size)
    for node, size in required.items():  # the size that the spec set for all of them is removed
        if changes.get(written[node]) == "null":
            changes[f"nodes.{node}.vocab_size"] = str(size)
    return [f"{path}={value}" for path, value in changes.items()]


def _owner(spec: ModelSpec, node: str) -> str:
    """The node that holds the token table of a node."""
    while (share := getattr(spec.nodes[node].options, "share", None)) is not None:
        node = share
    return node


def _spec(recipe: Recipe, catalogue: Catalogue, changes: list[str]) -> ModelSpec:
    return load_spec(recipe.model, catalogue, [*recipe.changes, *changes], named_by=recipe.names("model"))


def _plan(spec: ModelSpec, catalogue: Catalogue, backend: Any = None) -> ModelPlan:
    return build(spec, catalogue, device="meta", backend=backend).plan
