"""Activation checkpoints in graphs that run eagerly.

torch.compile's tracer makes an operator of torch.utils.checkpoint. That keeps no random numbers,
because AOTAutograd does it later. Where a graph runs as it is nobody does: dropout in a checkpoint
is another one in the backward pass, and the gradients are silently wrong. So such graphs call
torch.utils.checkpoint itself.
"""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint
from torch.fx import GraphModule

_OPERATOR = torch.ops.higher_order.tag_activation_checkpoint


def call_checkpoints(module: GraphModule) -> None:
    """Replace the operator by calls of torch.utils.checkpoint, in the graph and those inside."""
    for graph in [m for m in module.modules() if isinstance(m, GraphModule)]:
        nodes = [node for node in graph.graph.nodes if node.target is _OPERATOR]
        for node in nodes:
            node.target = checkpointed
        if nodes:
            graph.recompile()


def checkpointed(graph: GraphModule, *args: Any, **kwargs: Any) -> Any:
    """The graph's results; in the backward pass it is computed again, with its policy if it has
    one."""
    policy = graph.meta.get("_checkpoint_context_fn")
    options = kwargs | {"use_reentrant": False} | ({"context_fn": policy} if policy else {})
    return torch.utils.checkpoint.checkpoint(graph, *args, **options)
