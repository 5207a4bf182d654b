"""The graph of a model: nodes, edges, symbolic shapes, rules, counts and the backend plan. Nothing here imports torch."""

from .costs import Batch, node_costs, total_elements, total_flops
from .from_spec import graph_of
from .input_lengths import max_input_lengths
from .model_graph import Graph, Node
from .plan import SitePlan, Target, plan, refusals
from .refused_arguments import refused_arguments
from .rules import check_sublayers

__all__ = [
    "Batch",
    "Graph",
    "Node",
    "SitePlan",
    "Target",
    "check_sublayers",
    "graph_of",
    "max_input_lengths",
    "node_costs",
    "plan",
    "refusals",
    "refused_arguments",
    "total_elements",
    "total_flops",
]
