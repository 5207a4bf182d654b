"""The built-in initialisers: their distributions and their entries."""

from __future__ import annotations

from math import log, prod, sqrt
from typing import Annotated

from pydantic import Field

from ...plugin import Initialiser, NoOptions, Options, Parameter
from ...slots.init import Distribution, InitContext

STARTS_AT_ONE = frozenset({"norm_scale", "mix_scale", "running_variance"})


def constant(parameter: Parameter) -> Distribution | None:
    """Constants of every built-in initialiser: norm scales and running variances start at one, a logit scale at log(1 / 0.07),
    the factors of a value residual at 1/2, all other vectors at zero.

    Each initialiser draws tensors with two or more axes itself, including those with unknown roles.
    """
    if parameter.role in STARTS_AT_ONE:
        return Distribution("constant", centre=1.0)
    if parameter.role == "value_residual":  # the mean
        return Distribution("constant", centre=0.5)
    if parameter.role == "logit_scale":  # Radford et al. 2021, section 2.5
        return Distribution("constant", centre=log(1 / 0.07))
    return Distribution("constant") if len(parameter.shape) < 2 else None


def fans(parameter: Parameter) -> tuple[int, int]:
    """(fan_in, fan_out) of a linear map (fan_out, fan_in) or of a convolution (fan_out, fan_in, *window)."""
    window = prod(parameter.shape[2:])
    return parameter.shape[1] * window, parameter.shape[0] * window


XAVIER_TABLES = frozenset({"embedding", "segment_table", "position_table", "registers", "logits"})


def draw_xavier(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """Xavier initialisation as the Transformer's own code uses it (https://github.com/tensorflow/tensor2tensor).

        linear map            uniform on -+ sqrt(6 / (fan_in + fan_out))     Glorot and Bengio 2010, equation 16
        embedding, logits     normal with standard deviation width^-0.5, so that `scale: sqrt_d_model` gives unit variance
        relative tables       as a linear map: tensor2tensor's default for any variable

    Glorot and Bengio: https://proceedings.mlr.press/v9/glorot10a.html
    """
    if (fixed := constant(parameter)) is not None:
        return fixed
    if parameter.role in XAVIER_TABLES:
        return Distribution("normal", spread=parameter.shape[1] ** -0.5)
    return Distribution("uniform", spread=sqrt(6 / sum(fans(parameter))))


RESIDUAL_WRITERS = frozenset({"attention_output", "ffn_out"})


class NormalOptions(Options):
    """Options of `normal`."""

    std: Annotated[float, Field(gt=0.0, description="standard deviation of every weight")] = 0.02


def draw_normal(options: NormalOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """N(0, std^2)."""
    return constant(parameter) or Distribution("normal", spread=options.std)


def draw_gpt2(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """N(0, 0.02^2), divided by sqrt(2 num_layers) for projections that add to the residual, attention_output and ffn_out, since
    a stack has 2 num_layers residual branches: Radford et al. 2019, section 2.3. OpenAI's code draws the position table with
    0.01; Hugging Face and tfkit use 0.02.
    """
    spread = 0.02
    if parameter.role in RESIDUAL_WRITERS and context.num_layers:
        spread *= (2 * context.num_layers) ** -0.5
    return constant(parameter) or Distribution("normal", spread=spread)


def draw_bert(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """N(0, 0.02^2), truncated at two standard deviations: `create_initializer` of https://github.com/google-research/bert.

    Truncation reduces the standard deviation to 0.88 of the nominal one. Hugging Face's BERT does not truncate;
    `{kind: normal, std: 0.02}` is equal to it.
    """
    return constant(parameter) or Distribution("truncated_normal", spread=0.02)


T5_TABLES = frozenset({"embedding", "segment_table", "position_table"})


def draw_t5(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """T5's initialisation, after Mesh TensorFlow (https://github.com/tensorflow/mesh) and Raffel et al. 2020
    (https://arxiv.org/abs/1910.10683). All weights are normal with mean 0 and standard deviation

        query                             (d_model head_dim)^-0.5     has the 1/sqrt(head_dim) of the scores: T5 has scale 1
        every other linear map            fan_in^-0.5                 so d_model^-0.5, or (heads head_dim)^-0.5 for the output
        embedding and learned positions   1
        relative table                    d_model^-0.5

    Untied logits are a linear map, as in Mesh TensorFlow. Hugging Face uses a standard deviation of 1 for them.
    """
    return constant(parameter) or Distribution("normal", spread=_spread(parameter, context))


def _spread(parameter: Parameter, context: InitContext) -> float:
    if parameter.role in T5_TABLES:
        return 1.0
    if parameter.role == "relative_table":
        return float(context.d_model**-0.5)
    fan_in, _ = fans(parameter)
    if parameter.role == "query" and context.head_dim:
        fan_in *= context.head_dim
    return float(fan_in**-0.5)


TORCH_TABLES = XAVIER_TABLES - {"logits"} | {"relative_table"}


def draw_torch(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """What the modules of torch.nn draw (`reset_parameters`).

        Linear, convolutions     weight and bias uniform on -+ fan_in^-0.5
        Embedding                normal with standard deviation 1
        RNN, GRU, LSTM           all weights and biases uniform on -+ d_state^-0.5

    Projections of an attention are `Linear`, those of torch.nn.MultiheadAttention are Xavier uniform.
    """
    if parameter.role in TORCH_TABLES:
        return Distribution("normal", spread=1.0)
    if parameter.role != "bias" and (fixed := constant(parameter)) is not None:
        return fixed
    fan_in = context.fan_in or (fans(parameter)[0] if len(parameter.shape) > 1 else 0)
    return Distribution("uniform", spread=fan_in**-0.5) if fan_in else Distribution("constant")


class UniformOptions(Options):
    """Options of `uniform`."""

    bound: Annotated[float, Field(gt=0.0, le=1e37, description="largest size of a weight")] = 0.1


def draw_orthogonal(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """Orthogonal for products of a state with itself, one matrix per gate: Saxe et al. 2014 (https://arxiv.org/abs/1312.6120).
    The rest as `xavier`.
    """
    if parameter.role == "cell_state":
        return Distribution("orthogonal", spread=1.0)
    return draw_xavier(options, parameter, context)


def draw_rnnsearch(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """Products of states as `orthogonal`; W_a and U_a ~ N(0, 0.001^2), v_a = 0, the rest ~ N(0, 0.01^2): Bahdanau et al. 2015,
    appendix B.1.
    """
    if parameter.role == "cell_state":
        return Distribution("orthogonal", spread=1.0)
    if parameter.role == "score_out":
        return Distribution("constant")
    spread = 0.001 if parameter.role in ("score_query", "score_key") else 0.01
    return constant(parameter) or Distribution("normal", spread=spread)


def draw_uniform(options: UniformOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """Uniform on -bound .. bound, biases zero: Luong et al. 2015, section 4.1 (0.1)."""
    return constant(parameter) or Distribution("uniform", spread=options.bound)


ENTRIES: list[Initialiser] = [
    Initialiser(
        name="xavier",
        summary="Xavier uniform for linear maps, normal with width^-0.5 for embeddings: the Transformer's own",
        reference="https://proceedings.mlr.press/v9/glorot10a.html",
        draw=draw_xavier,
    ),
    Initialiser(
        name="gpt2",
        summary="normal 0.02; what writes into the residual is divided by sqrt(2 num_layers)",
        reference="https://github.com/openai/gpt-2",
        draw=draw_gpt2,
    ),
    Initialiser(
        name="bert",
        summary="normal 0.02, cut at two standard deviations",
        reference="https://arxiv.org/abs/1810.04805",
        draw=draw_bert,
    ),
    Initialiser(
        name="t5",
        summary="normal with fan_in^-0.5, the score's scale inside the query, embeddings with 1",
        reference="https://arxiv.org/abs/1910.10683",
        draw=draw_t5,
    ),
    Initialiser(
        name="orthogonal",
        summary="orthogonal products of recurrent states, the rest as xavier",
        reference="https://arxiv.org/abs/1312.6120",
        draw=draw_orthogonal,
    ),
    Initialiser(
        name="rnnsearch",
        summary="orthogonal products of states, additive scores near zero, the rest normal 0.01",
        reference="https://arxiv.org/abs/1409.0473",
        draw=draw_rnnsearch,
    ),
    Initialiser(
        name="torch",
        summary="as the modules of torch.nn: uniform within fan_in^-0.5, biases too; embeddings normal 1",
        reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html",
        draw=draw_torch,
    ),
    Initialiser(
        name="uniform",
        summary="uniform between -bound and bound, biases included",
        reference="https://arxiv.org/abs/1508.04025",
        options=UniformOptions,
        draw=draw_uniform,
    ),
    Initialiser(
        name="normal",
        summary="normal with one standard deviation for every weight",
        options=NormalOptions,
        draw=draw_normal,
    ),
]
