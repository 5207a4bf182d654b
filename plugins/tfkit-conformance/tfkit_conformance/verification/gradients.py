"""The gradient of every parameter against a float64 run of the same weights, for one random gradient of the outputs.

A worst case over all that may be rounded in a model grows with its depth until it says nothing. What a site was really off by
can be measured: with x a tensor that the site reads, O what it gives and dO the gradient that reached it in this very run,

    e_O = O - O*(x)      e_x = dx - dx*(x, dO)         O*, dx* in float64 on the same rounded x and dO

1. site gradients   |e_O|, |e_x| within the componentwise bound that the backend's contract gives for this call
                    (`tfkit_conformance.attention.bound`). No error is propagated, so the bound is as sharp as for a call alone.
2. gradients        The float64 model is run again with each site off by its e_O forward and by its e_x backward, nothing else.
                    Let h be its gradients: the exact gradient and, to all orders, what the sites' own errors make of it. What
                    is left, g - h, is rounded outside the sites, by the same modules for all backends:

                        max |g - h|  <=  FACTOR max(max |g_eager - h_eager|, 4 u max |h|)

                    with the yardstick measured under eager in the same dtype, in the same run, and FACTOR as for outputs
                    (`rounding`; float64 takes float32's by the ratio of the unit roundoffs). A site without a reference (a
                    score function of its own) adds nothing to h: its errors are held to the yardstick too.
3.                  A gradient whose error is as long as itself need not point uphill: <g, g*> > 0 is sure only while

                        |g - g*|_2  <  |g*|_2

                    and where eager in the same dtype has that and the backend has not, the backend loses this gradient, though
                    each of its calls keeps its contract: dS = P (dP - D) cancels where values are large, and an error of D
                    the size of the contract's is then larger than the right answer.

Left out of 2 and 3 are gradients that are zero by the equations (a key bias that the softmax does not see), and those that
float64 cannot distinguish from zero: max |g*| is at most FACTOR max |g_eager - g*|, scaled to the unit roundoff of float64.
"""

from __future__ import annotations

from torch import Tensor

from tfkit.plugin import AttentionOutput

from ..attention.compare import compared
from ..attention.evaluated import bounds_of
from ..attention.reference import reference
from ..finding import Violation
from .comparison import close
from .gradient_yardstick import GradientYardstick, largest, share_of, short
from .model_under_test import ModelUnderTest
from .rounding import LARGEST
from .row import NotApplicable, Reported
from .site_runs import Gradients, SiteRun, SiteRuns, site_errors, with_site_errors


def site_gradients(subject: ModelUnderTest) -> float:
    """1, at every site that the backend serves when gradients are wanted."""
    runs = _served(subject)
    known = [
        (site, run) for site, calls in runs.items() for run in calls if run.inputs.score is None and run.grad_output is not None
    ]
    if not known:
        raise NotApplicable("the reference computes dot products; other scores are checked by the gradients of the parameters")
    return max(check_site("site gradients", site, run) for site, run in known)


def parameter_gradients(subject: ModelUnderTest) -> float:
    """2 and 3."""
    if subject.model.sites:
        _served(subject)
    given, runs = subject.backward
    stick = subject.slopes
    if not stick.exact:
        raise NotApplicable("the model has no trainable parameter")
    explained = with_site_errors(stick.wide, subject.batch, stick.towards, site_errors(runs, stick.wide))
    worst, blunt = check_gradients("gradients", subject.backend, given, explained, stick)
    if blunt:
        raise Reported(blunt, worst)
    return worst


def _served(subject: ModelUnderTest) -> SiteRuns:
    """The calls that the backend itself served. Raises NotApplicable where there are none."""
    runs = {site: calls for site, calls in subject.backward[1].items() if calls[0].backend.kind == subject.backend}
    if not subject.model.sites:
        raise NotApplicable("the model has no attention")
    if not runs:
        raise NotApplicable("it serves no call with gradients; eager does")
    return runs


def check_site(check: str, site: str, run: SiteRun) -> float:
    """The largest error over its bound of one call of a site. Raises Violation, or Inconclusive for scores beyond the dtype."""
    wanted = reference(run.inputs, run.grad_output)
    bound = bounds_of(wanted, run.backend.entry.capabilities.numerics)
    words = f"{run.backend.kind} at {site}, for the gradient that reached it"
    results = compared(AttentionOutput(run.output), run.gradients, wanted, bound)
    return max(close(check, got, want, limit, words, name) for name, got, want, limit in results)


def check_gradients(
    check: str, backend: str, given: Gradients, explained: Gradients, stick: GradientYardstick
) -> tuple[float, str]:
    """The largest remaining error over its tolerance, and what the dtype alone does to a gradient that says nothing then, or
    nothing. Raises Violation."""
    dtype, worst, blunt = short(stick.dtype), 0.0, ""
    evaluated = [name for name in stick.exact if name not in stick.zero]
    for name in evaluated:
        own = share_of(given[name], stick.exact[name])
        if own >= 1.0 > stick.share[name]:
            raise Violation(check, _lost(name, backend, dtype, given[name], stick, own))
    for name in evaluated:
        if stick.share[name] > LARGEST:
            blunt = blunt or f"rounding in {dtype} alone moves the gradient of `{name}` by {stick.share[name]:.0%}"
            continue
        words = f"{backend} in {dtype}, beside what its sites were off by"
        allowed = stick.tolerance(name, largest(explained[name]))
        worst = max(worst, close(check, given[name], explained[name], allowed, words, f"the gradient of `{name}`"))
    return worst, blunt


def _lost(name: str, backend: str, dtype: str, given: Tensor, stick: GradientYardstick, own: float) -> str:
    got, right = largest(given), largest(stick.exact[name])
    return (
        f"under {backend} in {dtype} the gradient of `{name}` is up to {got:.4g} where {right:.4g} is right: its error is "
        f"{own:.3g} times as long as the gradient, so that a step along it need not lower the loss; under eager it is "
        f"{stick.share[name]:.3g} times. dP - D cancels in the backward of attention, as it does where values are large: use "
        "eager, or a norm before attention"
    )
